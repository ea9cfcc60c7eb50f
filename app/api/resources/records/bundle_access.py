"""Access to bundle contents: one rule for every path, cache headers, memory for large answers.

An API key of the tenant (within its pin), a share link of the record, or public access grants it.
Else the response hides whether the record exists: 401 without a valid credential, 404 with one for
something else.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial, wraps
from typing import TypeAlias, cast
from uuid import UUID

from flask import Response, after_this_request, g, request
from sqlalchemy.orm import Session

from app.api.http import admission, auth, large_work, parsing
from app.api.http.documentation import Blueprint, header
from app.api.http.services import client_address, request_id, services
from app.core.audit import record_reads
from app.core.callers import Caller, Role
from app.core.records import records, share_links
from app.core.records.share_links import Link
from app.database import Database
from app.errors import NotFound
from app.lib.fair_shares import NoShare
from app.models import Record
from app.schemas import fields
from app.schemas.schema import Schema

_FULL = (
    "Too many large answers of this tenant, or of all, are on their way: read those that you have "
    "begun, and try again in a moment."
)


_View: TypeAlias = Callable[..., Response]

QUERY = "share_token"
HEADER = "x-share-token"

_VARY = "Authorization, x-api-key, x-share-token"
_STORED_NOWHERE = "private, no-store"
_ASKED_EACH_TIME = "no-cache"


class ShareTokenArgs(Schema):
    """The query parameter for a share link; the header `x-share-token` does the same."""

    share_token = fields.AnyText(
        description="The token of a share link of this record; no key is needed."
    )


@dataclass(frozen=True)
class Grant:
    """How a request was granted access.

    `tenant_id` is None if no credential grants it. `caller` is set for an API key, `link_id` for a
    share link; `public` says that no credential was needed.
    """

    record_id: UUID | None
    tenant_id: UUID | None
    caller: Caller | None = None
    public: bool = False
    link_id: UUID | None = None


def bundle_content(*, public: bool) -> Callable[[_View], _View]:
    """Require access to the bundle of the route's `record_id`.

    With `public` a tenant may open it to anyone who has the id; without, a key or a link is needed.
    """

    def decorate(view: _View) -> _View:
        refuse_undeclared = parsing.undeclared_input(view)

        @wraps(view)
        def checked(*args: object, record_id: UUID | None, **kwargs: object) -> Response:
            after_this_request(_add_headers)
            auth.count()
            g.grant = _admit(record_id, may_be_public=public)
            refuse_undeclared()
            return view(*args, record_id=record_id, **kwargs)

        access = auth.Access(Role.READ, or_link=True)
        return Blueprint.doc(parameters=[_HEADER_PARAMETER])(auth.mark(checked, access))

    return decorate


def admit(caller: Caller, record_id: UUID | None) -> None:
    """Grant `caller` access to a record's bundle, on a route that has authenticated its key."""
    g.grant = Grant(record_id, caller.tenant_id, caller)


def granted() -> Grant:
    """Return how this request was granted access, by its last check if it had to wait.

    Only views behind `bundle_content` have one.
    """
    found = g.get("found_again")
    return found if isinstance(found, Grant) else cast(Grant, g.grant)


@contextmanager
def admitted() -> Iterator[tuple[Session, Record]]:
    """Open a transaction that sees the record's tenant, and find the record in it.

    Raises `NotFound` if no credential of the request grants access to it.
    """
    found = granted()
    if found.tenant_id is None or found.record_id is None:
        raise NotFound(records.NO_RECORD)
    with services().database.transaction(found.tenant_id) as session:
        if found.caller is None:
            yield session, records.shared(session, found.tenant_id, found.record_id)
        else:
            yield session, records.find(session, found.caller, found.record_id)


def holder() -> Caller | None:
    """Return the caller of a valid key of the record's tenant, even if no key was needed."""
    found = granted()
    if found.caller is not None or not found.public:
        return found.caller
    sent = auth.key_holder()
    return sent if sent is not None and sent.tenant_id == found.tenant_id else None


def note_read(answered: Response, record_id: UUID | None) -> Response:
    """Return an answer with content after its `record.read` is committed, where AUDIT_READS is on.

    Of a caller without a key there is none: a share link's opening has an entry of its own.
    """
    sends = answered.status_code in (200, 206) and request.method != "HEAD"
    if sends and record_id and services().settings.audit_reads and (reader := holder()) is not None:
        try:
            note_content_read(reader, record_id)
        except BaseException:
            answered.close()
            raise
    return answered


def note_content_read(reader: Caller, *subjects: UUID, kind: str = "record") -> None:
    """Commit a `record.read` of each record whose content is about to leave, as `note_read`.

    With the `kind` "session" it is the content of all its records: `session.read`.
    """
    if services().settings.audit_reads:
        with services().database.transaction(reader.tenant_id) as session:
            record_reads.note(session, reader, subjects, kind)


@dataclass(frozen=True)
class _Rule:
    """The rule for one request's record and share tokens; it needs no request."""

    database: Database
    record_id: UUID | None
    may_be_public: bool
    key_was_sent: bool
    tokens: Sequence[str]

    def apply(self, by_key: Callable[[], Caller], opens: Callable[[Link], bool]) -> Grant:
        """Return how the request is admitted; `opens` says whether a link opens the record."""
        wanted = self.record_id if self.may_be_public else None
        open_to_all = share_links.public_tenant(self.database, wanted)
        link = self._link()
        if open_to_all is None and link is None and (self.key_was_sent or not self.tokens):
            caller = by_key()
            return Grant(self.record_id, caller.tenant_id, caller)
        tenant_id, link_id = open_to_all, None
        if link is not None and opens(link):
            tenant_id, link_id = link.tenant_id, link.id
        return Grant(self.record_id, tenant_id, public=open_to_all is not None, link_id=link_id)

    def _link(self) -> Link | None:
        found = (share_links.find_link(self.database, token) for token in self.tokens)
        return next((link for link in found if link and link.record_id == self.record_id), None)


def _admit(record_id: UUID | None, *, may_be_public: bool) -> Grant:
    key_text = auth.presented_key()
    rule = _Rule(services().database, record_id, may_be_public, bool(key_text), _tokens())
    found = rule.apply(auth.authenticate, lambda link: open_link(link) is not None)
    by_key = partial(services().keyring.authenticate, key_text, request_id(), client_address())

    def again() -> Grant:
        # Found active, a link opens the record; this opening was counted.
        now = rule.apply(by_key, lambda _: True)
        if now.tenant_id is None:
            raise NotFound(records.NO_RECORD)
        return now

    admission.admitted_by(again)
    return found


def open_link(link: Link) -> datetime | None:
    """Count an opening of a link; return when it ends, None if it has ended."""
    with services().database.transaction(link.tenant_id) as session:
        return share_links.open_link(session, link, client_address(), request_id())


def _tokens() -> list[str]:
    sent = (request.args.get(QUERY), request.headers.get(HEADER))
    return list(dict.fromkeys(token for token in sent if token))


def _add_headers(response: Response) -> Response:
    found: Grant | None = g.get("grant")
    free = found is not None and found.public and not _tokens() and response.status_code < 400
    response.headers["Cache-Control"] = _ASKED_EACH_TIME if free else _STORED_NOWHERE
    response.headers["Vary"] = _VARY
    if _tokens():
        response.headers["X-Robots-Tag"] = "noindex, nofollow"
    return response


_HEADER_PARAMETER = header(HEADER, "The token of a share link, in place of `share_token`.")


@contextmanager
def share_of_memory(size: int) -> Iterator[None]:
    """Reserve memory for `size` bytes of a response; raises `Busy`.

    It counts against the share of the reader (API key, share link, or the public record itself),
    and of the record's tenant.
    """
    with ExitStack() as held:
        if size > large_work.LARGE:
            found = granted()
            reader = found.link_id or (found.caller.key_id if found.caller else found.record_id)
            try:
                held.enter_context(services().answers.held(reader, size, found.tenant_id))
            except NoShare:
                raise large_work.refused("answer_memory", _FULL) from None
        yield
