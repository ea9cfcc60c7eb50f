"""One digest: the findings it takes, its content, the same at every attempt, and its sending.

All findings are counted, some listed. A lost worker or answer (`uncertain`), or content that is
refused also without words, has the next digest list the same.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app import ids
from app.core.digests import letters, troubles
from app.core.digests.sending import ACCEPTED_BY, READDRESSED, TIMES, Outcome, Sending
from app.core.findings import Severity
from app.database import cursor
from app.lib.text_sanitizer import one_line
from app.models import Digest

MOST_FINDINGS = 50
MOST_GROUPS = 50
_MOST_TROUBLES = 20
_TITLE, _RULE, _NAME = 200, 80, 100


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
SELECT severity, rule, grouping(rule) = 1 AS is_total, count(*) AS count,
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


def read(
    session: Session, tenant_id: UUID, name: str, digest_id: UUID, *, brief: bool = False
) -> dict[str, Any]:
    """Return the content of a digest of the tenant called `name`, for its template.

    `again` of the `total` findings are of digests beyond the first of `parts`, which may be lost;
    each of `groups` has the findings of one severity and rule, some of them listed. With `brief`
    it has nobody's words, which the mail server refused: numbers, severities and ids alone.
    """
    wanted: dict[str, Any] = {"tenant": tenant_id, "id": digest_id}
    wanted["ranks"] = [*reversed(Severity)]
    parts = _rows(session, _PARTS, wanted)
    wanted["parts"] = [part["id"] for part in parts]
    counted = _rows(session, _COUNTS, wanted | {"most": len(Severity) + MOST_GROUPS})
    totals = [row for row in counted if row["is_total"]]
    of_rules = [row for row in counted if not row["is_total"]]
    told = troubles.of_tenant(session, tenant_id)[:_MOST_TROUBLES]
    found = {
        "tenant": ids.text("ten", tenant_id) if brief else one_line(name, _NAME),
        "total": sum(row["count"] for row in totals),
        "again": sum(row["again"] for row in totals),
        "by_severity": {row["severity"]: row["count"] for row in totals},
        "groups": totals if brief else of_rules,
        "groups_left": 0 if brief else (counted or [{"rows": 0}])[0]["rows"] - len(counted),
        "troubles": [troubles.without_words(each) for each in told] if brief else told,
        "parts": parts,
        "brief": brief,
    }
    # A finding of a group that is not shown is left out.
    under = {(row["severity"], row["rule"]): row.setdefault("lines", []) for row in found["groups"]}
    for line in _rows(session, _LINES, wanted | {"most": MOST_FINDINGS}):
        rule = None if brief else line["rule"]
        title = ids.text("fnd", line["id"]) if brief else one_line(line["title"], _TITLE)
        line |= {"title": title, "principal": one_line(line["principal"], _NAME)}
        under.get((line["severity"], rule), []).append(line)
    for row in found["groups"]:
        row["rule"] = row["rule"] and one_line(row["rule"], _RULE)
    found["shown"] = sum(map(len, under.values()))
    return found


def _rows(session: Session, query: str, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    return cursor(session, dict_row).execute(query.encode(), wanted).fetchall()


def subject(content: Mapping[str, Any]) -> str:
    """Return the subject: numbers and severities, no untrusted text."""
    new = content["total"] - content["again"]
    again = f"{letters.of(content['again'], 'finding')}, listed again"
    count = letters.of(new, "new finding") if new else again
    worst = next(iter(content["by_severity"].items()), None)
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

    def _changed(self, session: Session, *, lock: bool = False) -> Outcome | None:
        tenant, cur = self.tenant, cursor(session)
        series, nonce = tenant.digest_series, tenant.address_nonce
        if lock:
            series, nonce = cur.execute(_LOCK_TENANT, (self.mail.tenant_id,)).fetchall()[0]
        if series != self.mail.series:
            return _CLEARED
        return None if nonce == tenant.address_nonce else READDRESSED

    def _prepare(self, session: Session) -> str | None:
        return _take(session, self.mail, self.job.cursor) if self.mail.findings is None else None

    def _content(self, session: Session) -> tuple[str, dict[str, Any], UUID]:
        tenant = self.tenant
        found = self.mail.id
        content = read(session, tenant.id, tenant.name, found, brief=self.mail.brief)
        assert tenant.address_nonce is not None  # noqa: S101  # as the address
        return subject(content), content, tenant.address_nonce

    def _begin(self, session: Session) -> bool:
        wanted = {"tenant": self.mail.tenant_id, "id": self.mail.id, **TIMES}
        return cursor(session).execute(_BEGIN.encode(), wanted).rowcount == 1
