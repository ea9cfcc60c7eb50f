"""Lookup of any object by its id, by its name, and of records and findings by words.

One statement probes the primary key of each kind. A pinned key finds objects under its pin, and
none that belong to the whole tenant.
"""

import enum
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core import feeds, finding_search
from app.core.callers import Caller
from app.core.records import search as record_search
from app.database import cursor
from app.errors import Invalid
from app.lib.crypto.sealing import MasterKeys


class Type(enum.StrEnum):
    """Kinds of objects."""

    RECORD = "record"
    FINDING = "finding"
    SESSION = "session"
    AGENT = "agent"
    EVENT = "event"
    DELIVERY = "delivery"
    WEBHOOK = "webhook"
    JOB = "job"
    DIGEST = "digest"
    KEY = "key"
    SHARE_LINK = "share_link"
    RULE = "rule"
    EXPORT = "export"
    HOLD = "hold"


@dataclass(frozen=True)
class _Kind:
    """One kind of object: `title` and `within` (the parent id in its path) are SQL over `table`.

    `pin` is the SQL condition for pinned callers; without one they never see the kind. `deleted` is
    SQL for whether it was deleted, and `history` the path that stays readable then. `named` is SQL
    for the text that it is found by, and `external` says that its `external_id` is a name too.
    """

    type: Type
    prefix: str
    table: str
    title: str
    path: str
    pin: str | None = None
    within: tuple[str, str] | None = None
    deleted: str = "false"
    history: str | None = None
    named: str | None = None
    external: bool = False

    def by_name(self, *, pinned: bool) -> str:
        """Return the statement that finds the newest objects with all parts of names.

        Those with the whole external id are found whatever their age.
        """
        pin = f" AND {self.pin}" if pinned else ""
        columns = f"t.id, {self.title} AS title"
        where = f"FROM {self.table} WHERE t.tenant_id = %(tenant)s AND NOT ({self.deleted}){pin}"
        found = (
            f"SELECT '{self.type}' AS type, id, title FROM (SELECT {columns}, {self.named} AS named"
            f" {where} ORDER BY t.id DESC LIMIT {feeds.MOST_NAMES}) AS newest"
            " WHERE lower(named) LIKE ALL (%(parts)s::text[])"
        )
        if self.external:
            found += f" UNION SELECT '{self.type}', {columns} {where}"
            found += " AND t.external_id = %(typed)s"
        return f"({found} ORDER BY id DESC LIMIT %(limit)s)"

    def select(self, *, pinned: bool) -> str:
        """Return the statement that finds objects by `tenant` and the ids named by the prefix."""
        parent = self.within[1] if self.within else "NULL::uuid"
        return (
            f"SELECT '{self.type}' AS type, t.id, {self.title} AS title, {parent} AS parent,"
            f" {self.deleted} AS deleted FROM {self.table}"
            f" WHERE t.tenant_id = %(tenant)s AND t.id = ANY (%({self.prefix})s)"
            + (f" AND {self.pin}" if pinned else "")
        )


_PIN = "t.agent_id = %(agent)s AND t.principal = %(principal)s"
_SESSION = "coalesce(t.title, t.external_id, 'Session for ' || t.principal)"
_HOST = "substring(t.url FROM '^https?://[^/?#]+')"

_KINDS = (
    _Kind(Type.RECORD, "rec", "records AS t", "t.title", "/v1/records/{id}", _PIN),
    _Kind(Type.FINDING, "fnd", "findings AS t", "t.title", "/v1/findings/{id}", _PIN),
    _Kind(
        Type.SESSION,
        "ses",
        "sessions AS t",
        _SESSION,
        "/v1/sessions/{id}",
        _PIN,
        named="concat_ws(' ', t.title, t.external_id)",
        external=True,
    ),
    _Kind(
        Type.AGENT,
        "agt",
        "agents AS t",
        "t.name",
        "/v1/agents/{id}",
        "t.id = %(agent)s",
        named="concat_ws(' ', t.name, t.external_id)",
        external=True,
    ),
    _Kind(Type.EVENT, "evt", "events AS t", "t.type", "/v1/events/{id}"),
    _Kind(
        Type.DELIVERY,
        "dlv",
        "deliveries AS t",
        "t.event_type",
        "/v1/webhooks/{parent}/deliveries/{id}",
        within=("whk", "t.webhook_id"),
    ),
    _Kind(
        Type.WEBHOOK,
        "whk",
        "webhooks AS t",
        f"coalesce(nullif(t.description, ''), {_HOST})",
        "/v1/webhooks/{id}",
        deleted="t.deleted_at IS NOT NULL",
        history="/v1/webhooks/{id}/deliveries",
        named=f"concat_ws(' ', t.description, {_HOST})",
    ),
    _Kind(Type.JOB, "job", "jobs AS t", "t.kind", "/v1/jobs/{id}"),
    _Kind(
        Type.DIGEST,
        "dig",
        "digests AS t",
        "'Digest of ' || to_char(t.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
        "/v1/findings?digest_id={id}",
    ),
    _Kind(
        Type.KEY,
        "key",
        "api_keys AS t",
        "t.name",
        "/v1/keys",
        "t.pin_agent_id = %(agent)s AND t.pin_principal = %(principal)s",
        named="t.name",
    ),
    _Kind(
        Type.SHARE_LINK,
        "shr",
        "share_links AS t JOIN records AS r ON r.tenant_id = t.tenant_id AND r.id = t.record_id",
        "r.title",
        "/v1/records/{parent}/share-links",
        _PIN.replace("t.", "r."),
        ("rec", "t.record_id"),
    ),
    _Kind(
        Type.RULE,
        "rul",
        "rules AS t",
        "t.name",
        "/v1/rules/{id}",
        deleted="t.deleted_at IS NOT NULL",
        history="/v1/rules/{id}/versions",
        named="t.name",
    ),
    _Kind(
        Type.EXPORT,
        "exp",
        "exports AS t",
        "'Export of records from ' || to_char(t.since AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
        "/v1/exports/{id}",
    ),
    _Kind(Type.HOLD, "hld", "holds AS t", "left(t.reason, 200)", "/v1/holds/{id}"),
)
_BY_TYPE = {kind.type: kind for kind in _KINDS}

_ID = re.compile(
    r"(?:([a-z]{3})_)?([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    re.ASCII,
)


@dataclass(frozen=True)
class Hit:
    """A search hit; `parent` is the id of its parent, if its URL contains that.

    Of a deleted object (`is_deleted`) only the history can be read.
    """

    type: Type
    id: UUID
    title: str
    parent: UUID | None = None
    is_deleted: bool = False


def find(
    session: Session, caller: Caller, master_keys: MasterKeys, typed: str, limit: int
) -> Sequence[Hit]:
    """Return up to `limit` objects by id, or else the newest of those with all words.

    An id may lack its prefix and may have dashes; the external id of an agent or session is one
    too. Words are those of names first, then of records and findings. Raises `Invalid` when `typed`
    contains neither an id nor a word.
    """
    match = _ID.fullmatch(typed.strip().lower())
    by_id = _by_id(session, caller, match[1], UUID(match[2])) if match else []
    if by_id:
        return by_id[:limit]
    named = by_name(session, caller, typed.replace('"', " "), limit)
    try:
        return [*named, *_by_words(session, caller, master_keys, typed, limit)][:limit]
    except Invalid:
        if not named:
            raise
        return named


def named(
    session: Session,
    caller: Caller,
    master_keys: MasterKeys,
    prefixes: Collection[str],
    typed: str,
    limit: int,
) -> Sequence[Hit]:
    """Return up to `limit` objects of these kinds (none: of all) that `typed` may name.

    It is an id, perhaps without its prefix, a part of a name, or words of a record or finding.
    """
    match = _ID.fullmatch(typed.strip().lower())
    if match:
        wanted = prefixes or [kind.prefix for kind in _KINDS]
        return _by_ids(session, caller, {each: {UUID(match[2])} for each in wanted})
    found = by_name(session, caller, typed, limit, prefixes)
    try:
        if "fnd" in prefixes:
            found += _findings(session, caller, typed, limit)
        if "rec" in prefixes:
            found += _records(session, caller, master_keys, typed, limit)
    except Invalid:  # there is no word in it
        return found
    return found[:limit]


def represent(hit: Hit, base_url: str) -> dict[str, Any]:
    """Return the hit's JSON representation, with its URL."""
    kind = _BY_TYPE[hit.type]
    text = ids.text(kind.prefix, hit.id)
    parent = ids.text(kind.within[0], hit.parent) if kind.within and hit.parent else None
    path = kind.history if hit.is_deleted and kind.history else kind.path
    url = base_url + path.format(id=text, parent=parent)
    return {"type": hit.type, "id": text, "title": hit.title, "url": url}


def titles(session: Session, caller: Caller, wanted: Iterable[str]) -> dict[str, str]:
    """Return the titles of objects by their ids (`agt_…`), of those that the caller may see."""
    by_prefix: dict[str, set[UUID]] = {}
    for text in wanted:
        match = _ID.fullmatch(text)
        if match and match[1]:
            by_prefix.setdefault(match[1], set()).add(UUID(match[2]))
    found = _by_ids(session, caller, by_prefix)
    return {ids.text(_BY_TYPE[hit.type].prefix, hit.id): hit.title for hit in found}


def _by_id(session: Session, caller: Caller, prefix: str | None, wanted: UUID) -> list[Hit]:
    prefixes = [kind.prefix for kind in _KINDS] if prefix is None else [prefix]
    return _by_ids(session, caller, {each: {wanted} for each in prefixes})


def _by_ids(session: Session, caller: Caller, wanted: Mapping[str, Iterable[UUID]]) -> list[Hit]:
    """Return the objects with these ids, which `wanted` has by prefix."""
    pinned = caller.pin is not None
    selects = [
        kind.select(pinned=pinned)
        for kind in _KINDS
        if kind.prefix in wanted and (kind.pin or not pinned)
    ]
    if not selects:
        return []
    values = {
        "tenant": caller.tenant_id,
        "agent": caller.pin and caller.pin.agent_id,
        "principal": caller.pin and caller.pin.principal,
        **{prefix: list(each) for prefix, each in wanted.items()},
    }
    found = cursor(session).execute(" UNION ALL ".join(selects), values).fetchall()
    return [Hit(Type(row[0]), *row[1:]) for row in found]


def by_name(
    session: Session, caller: Caller, typed: str, limit: int, prefixes: Collection[str] = ()
) -> list[Hit]:
    """Return the newest objects whose name has all the words of `typed`, or parts of words.

    Of the kinds with these prefixes, else of all that have names. Of each kind the newest
    `feeds.MOST_NAMES` are looked at, and those with this `external_id` besides.
    """
    pinned = caller.pin is not None
    selects = [
        kind.by_name(pinned=pinned)
        for kind in _KINDS
        if kind.named and (kind.pin or not pinned) and (not prefixes or kind.prefix in prefixes)
    ]
    words = feeds.parts(typed)
    if not selects or not words:
        return []
    values = {
        "tenant": caller.tenant_id,
        "agent": caller.pin and caller.pin.agent_id,
        "principal": caller.pin and caller.pin.principal,
        "typed": typed.strip(),
        "parts": words,
        "limit": limit,
    }
    each = " UNION ALL ".join(selects)
    query = f"SELECT * FROM ({each}) AS found ORDER BY id DESC LIMIT %(limit)s"
    found = cursor(session).execute(query, values).fetchall()
    return [Hit(Type(kind), *row) for kind, *row in found]


def _by_words(
    session: Session, caller: Caller, master_keys: MasterKeys, typed: str, limit: int
) -> list[Hit]:
    hits = _findings(session, caller, typed, limit)
    hits += _records(session, caller, master_keys, typed, limit)
    return sorted(hits, key=lambda hit: hit.id, reverse=True)[:limit]


def _findings(session: Session, caller: Caller, typed: str, limit: int) -> list[Hit]:
    found = finding_search.first(session, caller, typed, limit)
    return [Hit(Type.FINDING, each.id, each.title) for each in found]


def _records(
    session: Session, caller: Caller, master_keys: MasterKeys, typed: str, limit: int
) -> list[Hit]:
    found = record_search.first(session, caller, master_keys, typed, limit)
    return [Hit(Type.RECORD, each.record.id, each.record.title) for each in found]
