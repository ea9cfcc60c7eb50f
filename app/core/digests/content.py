"""The content of a digest and its mail: plain text, HTML and headers; the same at every attempt.

All findings are counted, some listed. Headers contain no untrusted text; HTML is escaped; in the
plain text, untrusted text adds no line of its own. Headers are ASCII and bodies quoted-printable:
no server needs SMTPUTF8 or 8BITMIME.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app import ids
from app.core.delivery.lanes.lane_health import FAILURES_BEFORE_PAUSE, REFUSES
from app.core.findings import Severity
from app.database import cursor
from app.lib.mail.mailer import Letter
from app.lib.text_sanitizer import one_line

MOST_FINDINGS = 50
MOST_GROUPS = 50
MOST_WEBHOOKS = 20
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
class Trouble:
    """What needs attention: a webhook's origin (a path may hold a token) or a rule, and why."""

    id: UUID
    origin: str
    what: str


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

_WEBHOOKS = f"""
SELECT DISTINCT ON (w.status, w.id)
       w.id, w.url, w.status, w.disabled_reason, l.failing_since, l.refused_status,
       CASE WHEN {REFUSES} THEN l.unsuccessful_since END AS refusing_since
  FROM webhooks AS w JOIN present_lanes AS l ON l.tenant_id = w.tenant_id AND l.of_webhook = w.id
 WHERE w.tenant_id = %s AND w.deleted_at IS NULL
   AND ((w.status = 'disabled' AND w.disabled_reason <> 'requested')
        OR (w.status = 'enabled' AND ({REFUSES} OR l.failing_since IS NOT NULL
            AND (l.consecutive_failures >= %s OR l.paused_until > clock_timestamp()))))
 ORDER BY w.status, w.id, l.failing_since LIMIT %s
"""

# Those that erred in the last day, and those that the service has switched off.
_RULES = """
SELECT id, name, enabled, errors, last_error_json FROM rules
 WHERE tenant_id = %s AND deleted_at IS NULL AND erred_at > clock_timestamp() - interval '1 day'
 ORDER BY enabled, id LIMIT %s
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
    limits = (tenant_id, FAILURES_BEFORE_PAUSE, MOST_WEBHOOKS)
    troubled = cursor(session, dict_row).execute(_WEBHOOKS, limits)
    return Content(
        tenant=one_line(name, _NAME),
        total=sum(row["n"] for row in totals),
        again=sum(row["again"] for row in totals),
        by_severity={row["severity"]: row["n"] for row in totals},
        groups=groups,
        groups_left=(counted[0]["rows"] if counted else 0) - len(totals) - len(groups),
        shown=sum(len(group.lines) for group in groups),
        webhooks=[Trouble(row["id"], _origin(row["url"]), _what(row)) for row in troubled],
        parts=parts,
        rules=_failing_rules(session, tenant_id),
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
        webhooks=[replace(each, origin=ids.text("whk", each.id)) for each in full.webhooks],
        rules=[
            replace(each, origin=ids.text("rul", each.id), what="has errors or was switched off")
            for each in full.rules
        ],
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


def _failing_rules(session: Session, tenant_id: UUID) -> list[Trouble]:
    found = cursor(session, dict_row).execute(_RULES, (tenant_id, MOST_WEBHOOKS))
    return [
        Trouble(
            row["id"],
            one_line(row["name"], _NAME),
            f"{'' if row['enabled'] else 'is off; '}{row['errors']:,} of its evaluations had an "
            "error, the last one: "
            f"{one_line(json.loads(row['last_error_json'])['detail'], _TITLE)}",
        )
        for row in found
    ]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return one_line(f"{parts.scheme}://{parts.netloc}", _NAME)


def _what(row: Mapping[str, Any]) -> str:
    if row["status"] == "enabled":
        if row["refusing_since"]:
            since = f"{row['refusing_since'].astimezone(UTC):%Y-%m-%d %H:%M} UTC"
            return f"has refused everything since {since}, last with HTTP {row['refused_status']}"
        return f"failing since {row['failing_since'].astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    reasons = {
        "gone": "its receiver answered 410 Gone",
        "failing": "it had only failed for days",
        "refusing": "its receiver had accepted nothing for days",
    }
    return f"disabled, because {reasons.get(row['disabled_reason'], row['disabled_reason'])}"


_SENDER_NAME = "record-service"

# A header over 78 characters without a space would be folded into encoded words, in which mail
# programs do not recognise a URL. 998 characters are allowed (RFC 5322 section 2.1.1).
_UNFOLDED = SMTP.clone(max_line_length=998)

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(enabled_extensions=("html",), default=False),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%-d %B %Y, %H:%M} UTC"


def _of(count: int, one: str) -> str:
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


_TEMPLATES.filters["at"] = _at
_TEMPLATES.globals |= {"of": _of, "id_text": ids.text}


def write(
    digest_id: UUID, content: Content, base_url: str, token: str, *, sender: str, recipient: str
) -> Letter:
    """Return the mail of a digest; `token` is the unsubscribe token of the recipient's address.

    All links but that of the token lead through signing in to the console.
    """
    name = ids.text("dig", digest_id)
    unsubscribe = f"{base_url}/unsubscribe/{token}"
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address(_SENDER_NAME, addr_spec=sender)
    mail["To"] = Address(addr_spec=recipient)
    mail["Subject"] = subject(content)
    mail["Date"] = format_datetime(datetime.now(UTC))
    # The same at every attempt, so a second copy can be recognised.
    mail["Message-ID"] = f"<{name}@{sender.rpartition('@')[2]}>"
    # RFC 3834: no automatic reply.
    mail["Auto-Submitted"] = "auto-generated"
    # RFC 2369 and RFC 8058.
    mail["List-Unsubscribe"] = f"<{unsubscribe}>"
    mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    data = {"content": content, "base_url": base_url, "unsubscribe": unsubscribe}
    text, html = (
        _TEMPLATES.get_template(f"digest.{kind}").render(data) for kind in ("txt", "html")
    )
    mail.set_content(text, cte="quoted-printable")
    mail.add_alternative(html, subtype="html", cte="quoted-printable")
    return Letter(name, sender, recipient, mail.as_bytes(policy=_UNFOLDED))


def subject(content: Content) -> str:
    """Return the subject: numbers and severities, no untrusted text."""
    new = content.total - content.again
    count = _of(new, "new finding") if new else f"{_of(content.again, 'finding')}, listed again"
    worst = next(iter(content.by_severity.items()), None)
    return count if worst is None else f"{count} ({worst[1]:,} {worst[0]})"
