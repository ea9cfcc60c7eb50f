"""The content of a digest and its mail: plain text, HTML and headers; the same at every attempt.

All findings are counted, some listed. Headers contain no untrusted text; HTML is escaped; in the
plain text, untrusted text adds no line of its own. Headers are ASCII and bodies quoted-printable:
no server needs SMTPUTF8 or 8BITMIME.
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
from app.core.digests.troubles import Trouble
from app.core.findings import Severity
from app.database import cursor
from app.lib.mail.mailer import Letter
from app.lib.text_sanitizer import one_line

MOST_FINDINGS = 50
MOST_GROUPS = 50
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
    webhooks: Sequence[Trouble]
    parts: Sequence[Part]
    rules: Sequence[Trouble] = ()
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
        webhooks=troubles.webhooks(session, tenant_id),
        parts=parts,
        rules=troubles.rules(session, tenant_id),
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
        webhooks=list(map(troubles.without_words, full.webhooks)),
        rules=list(map(troubles.without_words, full.rules)),
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
        under.get((row["severity"], row["rule"]), []).append(_line(row))
    return [
        Group(row["severity"], one_line(row["rule"], _RULE), row["n"], lines_shown)
        for row, lines_shown in zip(counted, under.values(), strict=True)
    ]


def _line(row: Mapping[str, Any]) -> Line:
    title, principal = one_line(row["title"], _TITLE), one_line(row["principal"], _NAME)
    return Line(row["id"], title, principal, row["created_at"], row["again"])


def write(
    digest_id: UUID, content: Content, base_url: str, token: str, *, sender: str, recipient: str
) -> Letter:
    """Return the mail of a digest; `token` is the unsubscribe token of the recipient's address.

    All links but that of the token lead through signing in to the console.
    """
    unsubscribe = f"{base_url}/unsubscribe/{token}"
    data = {"content": content, "base_url": base_url, "unsubscribe": unsubscribe}
    return letters.write(
        ids.text("dig", digest_id),
        subject(content),
        "digest",
        data,
        sender=sender,
        recipient=recipient,
    )


def subject(content: Content) -> str:
    """Return the subject: numbers and severities, no untrusted text."""
    new = content.total - content.again
    count = (
        letters.of(new, "new finding")
        if new
        else f"{letters.of(content.again, 'finding')}, listed again"
    )
    worst = next(iter(content.by_severity.items()), None)
    return count if worst is None else f"{count} ({worst[1]:,} {worst[0]})"
