"""Lookup of any object by its id, by its name, and of records and findings by words.

One statement probes the primary key of each kind. A pinned key finds objects under its pin, and
none that belong to the whole tenant.
"""

import enum
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core import feeds, finding_search
from app.core.callers import Caller, Pin
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


class _Kind(NamedTuple):
    """One kind of object: `title` and `within` (the parent id in its path) are SQL over `table`.

    `pin` is the SQL condition for pinned callers; without one they never see the kind. Of one that
    can be `deleted` only the history under its path stays readable then. `named` is SQL for the
    text that it is found by, and `external` says that its `external_id` is a name too.
    """

    type: Type
    prefix: str
    table: str
    title: str
    pin: str | None = None
    path: str = "/v1/{table}/{id}"
    within: tuple[str, str] = ("", "NULL::uuid")
    history: str | None = None
    named: str | None = None
    external: bool = False

    @property
    def deleted(self) -> str:
        """SQL for whether it was deleted."""
        return "t.deleted_at IS NOT NULL" if self.history else "false"

    def where(self, pin: Pin | None) -> str:
        """Return the rows of a tenant that a caller may see."""
        pinned = f" AND {self.pin}" if pin else ""
        join = self.table if " " in self.table else f"{self.table} AS t"
        return f"FROM {join} WHERE t.tenant_id = %(tenant)s{pinned}"

    def by_name(self, pin: Pin | None) -> str:
        """Return the statement that finds the newest objects with all parts of names.

        Those with the whole external id are found whatever their age.
        """
        columns = f"t.id, {self.title} AS title"
        where = f"{self.where(pin)} AND NOT ({self.deleted})"
        found = (
            f"SELECT '{self.type}' AS type, id, title FROM (SELECT {columns}, {self.named} AS named"
            f" {where} ORDER BY t.id DESC LIMIT {feeds.MOST_NAMES}) AS newest"
            " WHERE lower(named) LIKE ALL (%(parts)s::text[])"
        )
        if self.external:
            found += f" UNION SELECT '{self.type}', {columns} {where}"
            found += " AND t.external_id = %(typed)s"
        return f"({found} ORDER BY id DESC LIMIT %(limit)s)"

    def by_id(self, pin: Pin | None) -> str:
        """Return the statement that finds objects by the ids named by the prefix."""
        return (
            f"SELECT '{self.type}' AS type, t.id, {self.title} AS title, {self.within[1]},"
            f" {self.deleted} {self.where(pin)} AND t.id = ANY (%({self.prefix})s)"
        )


_PIN = "t.agent_id = %(agent)s AND t.principal = %(principal)s"
_SESSION = "coalesce(t.title, t.external_id, 'Session for ' || t.principal)"
_HOST = "substring(t.url FROM '^https?://[^/?#]+')"
_DAY = "to_char(t.{} AT TIME ZONE 'UTC', 'YYYY-MM-DD')"

_KINDS = (
    _Kind(Type.RECORD, "rec", "records", "t.title", _PIN),
    _Kind(Type.FINDING, "fnd", "findings", "t.title", _PIN),
    _Kind(
        Type.SESSION,
        "ses",
        "sessions",
        _SESSION,
        _PIN,
        named="concat_ws(' ', t.title, t.external_id)",
        external=True,
    ),
    _Kind(
        Type.AGENT,
        "agt",
        "agents",
        "t.name",
        "t.id = %(agent)s",
        named="concat_ws(' ', t.name, t.external_id)",
        external=True,
    ),
    _Kind(Type.EVENT, "evt", "events", "t.type"),
    _Kind(
        Type.DELIVERY,
        "dlv",
        "deliveries",
        "t.event_type",
        path="/v1/webhooks/{parent}/deliveries/{id}",
        within=("whk", "t.webhook_id"),
    ),
    _Kind(
        Type.WEBHOOK,
        "whk",
        "webhooks",
        f"coalesce(nullif(t.description, ''), {_HOST})",
        history="/deliveries",
        named=f"concat_ws(' ', t.description, {_HOST})",
    ),
    _Kind(Type.JOB, "job", "jobs", "t.kind"),
    _Kind(
        Type.DIGEST,
        "dig",
        "digests",
        "'Digest of ' || " + _DAY.format("claimed_at"),
        path="/v1/findings?digest_id={id}",
    ),
    _Kind(
        Type.KEY,
        "key",
        "api_keys",
        "t.name",
        "t.pin_agent_id = %(agent)s AND t.pin_principal = %(principal)s",
        "/v1/keys",
        named="t.name",
    ),
    _Kind(
        Type.SHARE_LINK,
        "shr",
        "share_links AS t JOIN records AS r ON r.tenant_id = t.tenant_id AND r.id = t.record_id",
        "r.title",
        _PIN.replace("t.", "r."),
        "/v1/records/{parent}/share-links",
        within=("rec", "t.record_id"),
    ),
    _Kind(Type.RULE, "rul", "rules", "t.name", history="/versions", named="t.name"),
    _Kind(Type.EXPORT, "exp", "exports", "'Export of records from ' || " + _DAY.format("since")),
    _Kind(Type.HOLD, "hld", "holds", "left(t.reason, 200)"),
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
    session: Session,
    caller: Caller,
    master_keys: MasterKeys,
    typed: str,
    limit: int,
    prefixes: Collection[str] = (),
) -> Sequence[Hit]:
    """Return up to `limit` objects by id, or else the newest of those with all words.

    Of the kinds with these prefixes, else of all. An id may lack its prefix and may have dashes;
    the external id of an agent or session is one too. Words are those of names first, then of
    records and findings. Raises `Invalid` when `typed` contains neither an id nor a word.
    """
    match = _ID.fullmatch(typed.strip().lower())
    wanted = prefixes or [kind.prefix for kind in _KINDS]
    if match:
        one = [each for each in wanted if match[1] in (None, each)]
        if by_id := _by_ids(session, caller, {each: [UUID(match[2])] for each in one}):
            return by_id[:limit]
    named = _by_name(session, caller, typed.replace('"', " "), limit, wanted)
    words: list[Hit] = []
    try:
        if "fnd" in wanted:
            findings = finding_search.first(session, caller, typed, limit)
            words += [Hit(Type.FINDING, each.id, each.title) for each in findings]
        if "rec" in wanted:
            found = record_search.first(session, caller, master_keys, typed, limit)
            words += [Hit(Type.RECORD, each.record.id, each.record.title) for each in found]
    except Invalid:
        if not named:
            raise
    return [*named, *sorted(words, key=lambda hit: hit.id, reverse=True)][:limit]


def represent(hit: Hit, base_url: str) -> dict[str, Any]:
    """Return the hit's JSON representation, with its URL."""
    kind = _BY_TYPE[hit.type]
    text = ids.text(kind.prefix, hit.id)
    parent = ids.text(kind.within[0], hit.parent) if hit.parent else None
    path = kind.path + (kind.history or "") if hit.is_deleted else kind.path
    url = base_url + path.format(table=kind.table, id=text, parent=parent)
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


def _by_ids(session: Session, caller: Caller, wanted: Mapping[str, Iterable[UUID]]) -> list[Hit]:
    """Return the objects with these ids, which `wanted` has by prefix."""
    kinds = [each for each in _seen(caller) if each.prefix in wanted]
    if not kinds:
        return []
    values = _values(caller, **{prefix: list(each) for prefix, each in wanted.items()})
    each = " UNION ALL ".join(kind.by_id(caller.pin) for kind in kinds)
    found = cursor(session).execute(each, values).fetchall()
    return [Hit(Type(kind), *row) for kind, *row in found]


def _by_name(
    session: Session, caller: Caller, typed: str, limit: int, prefixes: Collection[str]
) -> list[Hit]:
    """Return the newest objects whose name has all the words of `typed`, or parts of words.

    Of each kind the newest `feeds.MOST_NAMES` are looked at, and those with this `external_id`
    besides.
    """
    kinds = [each for each in _seen(caller) if each.named and each.prefix in prefixes]
    words = feeds.parts(typed)
    if not kinds or not words:
        return []
    values = _values(caller, typed=typed.strip(), parts=words, limit=limit)
    each = " UNION ALL ".join(kind.by_name(caller.pin) for kind in kinds)
    query = f"SELECT * FROM ({each}) AS found ORDER BY id DESC LIMIT %(limit)s"
    found = cursor(session).execute(query, values).fetchall()
    return [Hit(Type(kind), *row) for kind, *row in found]


def _seen(caller: Caller) -> Iterable[_Kind]:
    return (kind for kind in _KINDS if kind.pin or caller.pin is None)


def _values(caller: Caller, **beside: object) -> dict[str, object]:
    pin = caller.pin
    whose = {"agent": pin.agent_id, "principal": pin.principal} if pin else {}
    return {"tenant": caller.tenant_id, **whose, **beside}
