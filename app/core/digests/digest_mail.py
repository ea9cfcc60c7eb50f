"""One digest: the findings it takes, its content, the same at every attempt, and its sending.

All findings are counted, some listed. A lost worker or answer (`uncertain`), or content that is
refused also without words, has the next digest list the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app import ids
from app.core.digests import letters, troubles
from app.core.digests.sending import ACCEPTED_BY, TIMES, Outcome, Sending
from app.core.digests.troubles import Trouble
from app.core.findings import Severity
from app.database import cursor
from app.lib.text_sanitizer import one_line
from app.models import Digest

MOST_FINDINGS = 50
MOST_GROUPS = 50
_MOST_TROUBLES = 20
_TITLE, _RULE, _NAME = 200, 80, 100


@dataclass(frozen=True)
class Line:
    """A listed finding; `again` says that an earlier mail may have listed it.

    Of a mail without words `title` is the finding's id, and `principal` empty.
    """

    id: UUID
    title: str
    principal: str
    created_at: datetime
    again: bool


@dataclass(frozen=True)
class Group:
    """All findings of one severity and rule; `lines` are those listed.

    Of a mail without words all of one severity; `rule` is empty.
    """

    severity: str
    rule: str
    count: int
    lines: Sequence[Line]


@dataclass(frozen=True)
class Part:
    """A digest whose findings are listed: the one being sent, or one that may have been lost."""

    id: UUID
    data_at: datetime | None


@dataclass(frozen=True)
class Content:
    """The content of a mail. `again` of the `total` findings are of `parts` beyond the first.

    `brief`: without anybody's words, which the mail server refused.
    """

    tenant: str
    total: int
    again: int
    by_severity: Mapping[str, int]
    groups: Sequence[Group]
    groups_left: int
    shown: int
    troubles: Sequence[Trouble]
    parts: Sequence[Part]
    brief: bool = False


# The last digest of the chain may be lost, and so may those that listed its findings since.
_PARTS = """
WITH RECURSIVE parts AS (
    SELECT id, repeats, coalesce(data_at, claimed_at) AS data_at, 0 AS age
      FROM digests WHERE tenant_id = %(tenant)s AND id = %(id)s
    UNION ALL
    SELECT d.id, d.repeats, coalesce(d.data_at, d.claimed_at), p.age + 1 FROM parts AS p
      JOIN digests AS d ON d.tenant_id = %(tenant)s AND d.id = p.repeats
)
SELECT id, data_at FROM parts ORDER BY age
"""

_RANK = "array_position(%(ranks)s::text[], severity)"
_LISTED = "FROM findings WHERE tenant_id = %(tenant)s AND digest_id = ANY(%(parts)s)"
# One scan of the findings yields the totals by severity, then the groups.
_COUNTS = f"""
SELECT severity, rule, grouping(rule) = 1 AS is_total, count(*) AS n,
       count(*) FILTER (WHERE digest_id <> %(id)s) AS again, count(*) OVER () AS rows
  {_LISTED}
 GROUP BY GROUPING SETS ((severity), (severity, rule))
 ORDER BY grouping(rule) DESC, {_RANK}, count(*) DESC, rule LIMIT %(most)s
"""
_LINES = f"""
SELECT id, severity, rule, left(title, 1000) AS title, left(principal, 1000) AS principal,
       created_at, digest_id <> %(id)s AS again
  {_LISTED}
 ORDER BY {_RANK}, id LIMIT %(most)s
"""


def read(session: Session, tenant_id: UUID, name: str, digest_id: UUID) -> Content:
    """Return the content of a digest; `name` is the tenant's name."""
    wanted = {"tenant": tenant_id, "id": digest_id, "ranks": [*reversed(Severity)]}
    rows = cursor(session).execute(_PARTS, wanted).fetchall()
    parts = [Part(*row) for row in rows]
    wanted["parts"] = [part.id for part in parts]
    counted = _rows(session, _COUNTS, wanted, len(Severity) + MOST_GROUPS)
    totals = [row for row in counted if row["is_total"]]
    lines = _rows(session, _LINES, wanted, MOST_FINDINGS)
    groups = _groups([row for row in counted if not row["is_total"]], lines)
    return Content(
        tenant=one_line(name, _NAME),
        total=sum(row["n"] for row in totals),
        again=sum(row["again"] for row in totals),
        by_severity={row["severity"]: row["n"] for row in totals},
        groups=groups,
        groups_left=(counted[0]["rows"] if counted else 0) - len(totals) - len(groups),
        shown=sum(len(group.lines) for group in groups),
        troubles=troubles.of_tenant(session, tenant_id)[:_MOST_TROUBLES],
        parts=parts,
    )


def without_words(full: Content, tenant_id: UUID) -> Content:
    """Return the content with numbers, severities and ids alone: none of it is a stranger's word.

    The mail then has nothing of one customer that a server could object to.
    """
    lines: dict[str, list[Line]] = {severity: [] for severity in full.by_severity}
    for group in full.groups:
        for line in group.lines:
            named = replace(line, title=ids.text("fnd", line.id), principal="")
            lines[group.severity].append(named)
    return replace(
        full,
        tenant=ids.text("ten", tenant_id),
        groups=[Group(each, "", n, lines[each]) for each, n in full.by_severity.items()],
        groups_left=0,
        troubles=list(map(troubles.without_words, full.troubles)),
        brief=True,
    )


def _rows(
    session: Session, query: str, wanted: Mapping[str, Any], most: int
) -> list[dict[str, Any]]:
    return cursor(session, dict_row).execute(query.encode(), {**wanted, "most": most}).fetchall()


def _groups(counted: list[dict[str, Any]], lines: list[dict[str, Any]]) -> list[Group]:
    """Return the groups, with the listed findings of each."""
    under: dict[tuple[str, str], list[Line]] = {(r["severity"], r["rule"]): [] for r in counted}
    for row in lines:
        # A finding of a group that is not shown is left out.
        shown = (one_line(row["title"], _TITLE), one_line(row["principal"], _NAME))
        line = Line(row["id"], *shown, row["created_at"], row["again"])
        under.get((row["severity"], row["rule"]), []).append(line)
    return [
        Group(row["severity"], one_line(row["rule"], _RULE), row["n"], lines_shown)
        for row, lines_shown in zip(counted, under.values(), strict=True)
    ]


def subject(content: Content) -> str:
    """Return the subject: numbers and severities, no untrusted text."""
    new = content.total - content.again
    again = f"{letters.of(content.again, 'finding')}, listed again"
    count = letters.of(new, "new finding") if new else again
    worst = next(iter(content.by_severity.items()), None)
    return count if worst is None else f"{count} ({worst[1]:,} {worst[0]})"


# Findings assigned in one transaction, which takes a fraction of a second.
TAKEN_AT_ONCE = 2_000

_TAKE = """
WITH next AS MATERIALIZED (
    SELECT id FROM findings
     WHERE tenant_id = %(tenant)s AND digest_id = %(series)s
       AND id > %(last)s AND id <= %(through)s
     ORDER BY id LIMIT %(most)s
), taken AS (
    UPDATE findings SET digest_id = %(id)s
     WHERE tenant_id = %(tenant)s AND id = ANY(ARRAY(SELECT id FROM next))
)
SELECT count(*), (SELECT id FROM next ORDER BY id DESC LIMIT 1) FROM next
"""
# The cursor of a job whose digest has all its findings.
TAKEN = "taken"
_TAKING = "taking:"
_FIX_COUNT = """
UPDATE digests AS d
   SET findings = (SELECT count(*) FROM findings AS f
                    WHERE f.tenant_id = d.tenant_id AND f.digest_id = d.id)
 WHERE d.tenant_id = %s AND d.id = %s
"""


def _take(session: Session, digest: Digest, after: str | None) -> str:
    """Assign the next findings to this digest; once there are no more, store their number.

    Returns the job's next cursor; `after` is its current one, so that the scan skips the dead index
    entries of earlier batches. `through` bounds the scan. A finding that is committed after the
    scan has passed its id stays in the series, for the next digest.
    """
    cur = cursor(session)
    is_taking = after is not None and after.startswith(_TAKING)
    wanted = {
        "tenant": digest.tenant_id,
        "id": digest.id,
        "series": digest.series,
        "through": digest.through,
        "last": UUID(after.removeprefix(_TAKING)) if after and is_taking else UUID(int=0),
        "most": TAKEN_AT_ONCE,
    }
    taken = cur.execute(_TAKE, wanted).fetchone()
    if taken is not None and taken[0] == TAKEN_AT_ONCE:
        return f"{_TAKING}{taken[1]}"
    cur.execute(_FIX_COUNT, (digest.tenant_id, digest.id))
    session.refresh(digest)
    return TAKEN


# Digests that delay others of their tenant; the first condition is for the index.
KEEPS_BACK = f"""
data_at > (SELECT clock_timestamp() - interval '24 hours' - %(unheard)s)
   AND {ACCEPTED_BY} > clock_timestamp() - interval '24 hours'
"""
_CLEARED = Outcome("cancelled", "The address was cleared.")
# A change of the address takes the same lock.
_LOCK_TENANT = """
SELECT digest_series, address_nonce FROM tenants WHERE id = %s FOR NO KEY UPDATE
"""
_BEGIN = f"""
UPDATE digests SET status = 'sending', data_at = clock_timestamp()
 WHERE tenant_id = %(tenant)s AND id = %(id)s AND status = 'pending'
   AND NOT EXISTS (SELECT FROM digests
                    WHERE tenant_id = %(tenant)s AND id <> %(id)s AND {KEEPS_BACK})
"""


class DigestSending(Sending[Digest]):
    """The job of a digest, which first assigns its findings."""

    kind, prefix, of, model = "digest", "dig", "findings", Digest
    template, mails = "digest", "digests"

    @property
    def _address(self) -> str:
        # A series lasts as long as there is an address, and each address has a nonce.
        return str(self.tenant.notification_email)

    def _over(self, session: Session) -> Outcome | None:
        return None if self._locked(session)[0] == self.mail.series else _CLEARED

    def _readdressed(self, session: Session) -> bool:
        return self._locked(session)[1] != self.tenant.address_nonce

    def _prepare(self, session: Session) -> str | None:
        return _take(session, self.mail, self.job.cursor) if self.mail.findings is None else None

    def _content(self, session: Session) -> tuple[str, dict[str, Any], UUID]:
        tenant = self.tenant
        content = read(session, tenant.id, tenant.name, self.mail.id)
        if self.mail.brief:
            content = without_words(content, tenant.id)
        assert tenant.address_nonce is not None  # noqa: S101  # as the address
        data = {"content": content, "tenant": content.tenant}
        return subject(content), data, tenant.address_nonce

    def _begin(self, session: Session) -> bool:
        wanted = {"tenant": self.mail.tenant_id, "id": self.mail.id, **TIMES}
        return cursor(session).execute(_BEGIN.encode(), wanted).rowcount == 1

    def _locked(self, session: Session) -> Sequence[UUID | None]:
        """Return the tenant's series and nonce, locked until the transaction ends."""
        return cursor(session).execute(_LOCK_TENANT, (self.mail.tenant_id,)).fetchall()[0]
