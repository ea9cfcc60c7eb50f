"""What comes of verdicts: findings, each once, and the books of each rule.

All of it is written in the transaction that deletes the work or moves a job's cursor on. A match is
a row of `rule_matches`: one that is there already makes no finding again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import findings
from app.core.audit import chain
from app.core.callers import SYSTEM, Caller, Role
from app.core.findings import NewFinding, Severity, Source
from app.core.rules.evaluators import MOST_ENDED, Verdict
from app.core.rules.language import RuleText
from app.core.rules.subjects import Work
from app.database import cursor, database_now
from app.schemas import fields

DEDUPE_FOR = timedelta(hours=24)
"""How long a text of `dedupe` makes no second finding of its rule."""

MOST_AT_ONCE = 1000

_MATCH = """
INSERT INTO rule_matches (tenant_id, rule_id, version, subject_id, matched)
SELECT %s, * FROM unnest(%s::uuid[], %s::bigint[], %s::uuid[], %s::bigint[])
    ON CONFLICT DO NOTHING RETURNING rule_id, version, subject_id
"""
_DEDUPE = """
INSERT INTO rule_dedupes AS d (tenant_id, rule_id, text_hash, until)
SELECT %(tenant)s, rule, text, %(now)s::timestamptz + %(keep)s
  FROM unnest(%(rules)s::uuid[], %(texts)s::bytea[]) AS new (rule, text)
 ORDER BY rule, text
    ON CONFLICT (tenant_id, rule_id, text_hash) DO UPDATE SET until = excluded.until
 WHERE d.until <= %(now)s
RETURNING rule_id, text_hash
"""
_FOUND = """
SELECT rule_id, found FROM rule_hours
 WHERE tenant_id = %s AND hour = date_trunc('hour', %s::timestamptz, 'UTC') AND rule_id = ANY (%s)
"""
_COUNT = """
INSERT INTO rule_hours AS h (tenant_id, rule_id, hour, matched, found, withheld, session_id,
                             record_id, version)
VALUES (%(tenant)s, %(rule)s, date_trunc('hour', %(now)s::timestamptz, 'UTC'), %(matched)s,
        %(found)s, %(withheld)s, %(session)s, %(record)s, %(version)s)
    ON CONFLICT (tenant_id, rule_id, hour) DO UPDATE
   SET matched = h.matched + excluded.matched, found = h.found + excluded.found,
       withheld = h.withheld + excluded.withheld,
       session_id = CASE WHEN excluded.withheld > 0 THEN excluded.session_id ELSE h.session_id END,
       record_id = CASE WHEN excluded.withheld > 0 THEN excluded.record_id ELSE h.record_id END,
       version = CASE WHEN excluded.withheld > 0 THEN excluded.version ELSE h.version END
"""
_ERRORS = """
UPDATE rules SET errors = errors + %(errors)s, ended = ended + %(ended)s,
       last_error_json = %(last)s, erred_at = clock_timestamp()
 WHERE tenant_id = %(tenant)s AND id = %(rule)s AND version = %(version)s
RETURNING ended
"""
_SWITCH_OFF = """
WITH ended AS (
    UPDATE rule_periods SET until = greatest(since, %(at)s)
     WHERE tenant_id = %(tenant)s AND rule_id = %(rule)s AND until IS NULL
)
UPDATE rules SET enabled = false, updated_at = clock_timestamp()
 WHERE tenant_id = %(tenant)s AND id = %(rule)s AND version = %(version)s AND enabled
RETURNING true
"""
_TELL = """
UPDATE rule_hours AS h SET told = true
  FROM rule_versions AS v
 WHERE h.tenant_id = %(tenant)s AND h.withheld > 0 AND NOT h.told
   AND h.hour < date_trunc('hour', clock_timestamp(), 'UTC')
   AND v.tenant_id = h.tenant_id AND v.rule_id = h.rule_id AND v.version = h.version
RETURNING h.rule_id, h.version, v.name, v.severity, h.hour, h.withheld, h.session_id, h.record_id
"""


class Judge(NamedTuple):
    """A rule's version as it judges, and how often it was ended before."""

    id: UUID
    version: int
    name: str
    severity: str
    max_per_hour: int
    text: RuleText
    ended: int


@dataclass
class _Books:
    """What a batch adds to one rule's books."""

    matched: int = 0
    found: int = 0
    withheld: int = 0
    last_withheld: tuple[UUID | None, UUID | None] = (None, None)
    errors: int = 0
    ended: int = 0
    last_error: dict[str, Any] = field(default_factory=dict)
    off: Work | None = None


class _Draft(NamedTuple):
    """A finding of a match, before deduplication and the hourly limit."""

    judge: Judge
    new: NewFinding
    dedupe: bytes | None


def caller(tenant_id: UUID) -> Caller:
    """Return the service itself as the author of a tenant's findings."""
    return Caller(tenant_id, UUID(int=0), Role.WRITE, None, "rules")


def commit(
    session: Session,
    tenant_id: UUID,
    judges: Sequence[Judge],
    judged: Sequence[tuple[Work, Mapping[int, Verdict]]],
    *,
    live: bool = True,
) -> int:
    """Write what came of verdicts, by the judges' places; return the number of findings made.

    In the order given. A rule that was ended for the third time is switched off there: what it
    would have judged later is left to a backfill. Not `live`, for a backfill, the hour's limit does
    not hold, and errors are the job's own.
    """
    now = database_now(session)
    books = [_Books() for _ in judges]
    matched: dict[tuple[UUID, int, UUID], tuple[Work, Judge, Verdict]] = {}
    for work, verdicts in judged:
        for place, verdict in sorted(verdicts.items()):
            judge, book = judges[place], books[place]
            if book.off is not None:
                continue
            if verdict.errors and live:
                _note_error(book, judge, work, verdict)
            if verdict.matched:
                matched[judge.id, judge.version, work.id] = work, judge, verdict
    by_judge = dict(zip(judges, books, strict=True))
    drafts = _fresh(session, tenant_id, _drafts(session, tenant_id, matched, by_judge), now)
    new = [each.new for each in drafts]
    if live:
        new = _within_limits(session, tenant_id, drafts, by_judge, now)
    for start in range(0, len(new), MOST_AT_ONCE):
        part = new[start : start + MOST_AT_ONCE]
        findings.add(session, caller(tenant_id), part, Source.RULE)
    _count(session, tenant_id, judges, books, now)
    for judge, book in zip(judges, books, strict=True):
        _write_errors(session, tenant_id, judge, book)
    return len(new)


def tell(session: Session, tenant_id: UUID) -> int:
    """Make the findings "and N more" of hours that ended; return their number."""
    rows = cursor(session).execute(_TELL, {"tenant": tenant_id}).fetchall()
    new = [
        NewFinding(
            session_id,
            name,
            severity,
            f"{name}: and {withheld:,} more in the hour from {hour:%Y-%m-%d %H:%M} UTC"[:500],
            data={"rule": _named(rule_id, version), "withheld": withheld, "hour": rfc3339(hour)},
            record_id=record_id,
        )
        for rule_id, version, name, severity, hour, withheld, session_id, record_id in rows
    ]
    if new:
        findings.add(session, caller(tenant_id), new, Source.RULE)
    return len(new)


def forget_old(session: Session, before: datetime) -> int:
    """Delete texts of `dedupe` whose time is over and hours before a moment; return how many.

    In a session that sees all tenants.
    """
    cur = cursor(session)
    texts = cur.execute("DELETE FROM rule_dedupes WHERE until < clock_timestamp()").rowcount
    return texts + cur.execute("DELETE FROM rule_hours WHERE hour < %s", (before,)).rowcount


def _note_error(book: _Books, judge: Judge, work: Work, verdict: Verdict) -> None:
    book.errors += verdict.errors
    book.ended += verdict.ended
    place = {"step": verdict.step} if verdict.step is not None else {}
    name, prefix = ("session_id", "ses") if work.is_session else ("record_id", "rec")
    book.last_error = {"detail": verdict.error, name: ids.text(prefix, work.id), **place}
    if verdict.ended and judge.ended + book.ended >= MOST_ENDED:
        book.off = work


def _drafts(
    session: Session,
    tenant_id: UUID,
    matched: Mapping[tuple[UUID, int, UUID], tuple[Work, Judge, Verdict]],
    books: Mapping[Judge, _Books],
) -> list[_Draft]:
    """Store the matches, and return the findings of those that were not there yet."""
    if not matched:
        return []
    rules, versions, subjects = zip(*matched, strict=True)
    counts = [verdict.matched for _, _, verdict in matched.values()]
    values = (tenant_id, list(rules), list(versions), list(subjects), counts)
    stored = set(cursor(session).execute(_MATCH, values).fetchall())
    drafts: list[_Draft] = []
    for key, (work, judge, verdict) in matched.items():
        if key in stored:
            books[judge].matched += verdict.matched
            drafts += _of_match(work, judge, verdict)
    return drafts


def _of_match(work: Work, judge: Judge, verdict: Verdict) -> list[_Draft]:
    about = {"session_id": work.id} if work.is_session else {"session_id": None}
    record_id = None if work.is_session else work.id

    def draft(
        title: str, detail: str | None, data: Mapping[str, Any], dedupe: str | None = None
    ) -> _Draft:
        new = NewFinding(
            about["session_id"], judge.name, judge.severity, title, detail, data, record_id
        )
        return _Draft(judge, new, None if dedupe is None else bytes.fromhex(dedupe))

    found = [
        draft(
            each.title,
            each.detail,
            {"rule": _named(judge.id, judge.version, each.step), "matched": each.what},
            each.dedupe,
        )
        for each in verdict.matches
    ]
    more = verdict.matched - len(verdict.matches)
    if more > 0:
        title = f"{judge.name}: {more:,} more steps of this record match"[:500]
        found.append(draft(title, None, {"rule": _named(judge.id, judge.version), "more": more}))
    return found


def _named(rule_id: UUID, version: int, step: int | None = None) -> dict[str, Any]:
    """Return a rule as a finding's `data` names it."""
    place = {} if step is None else {"step": step}
    return {"id": ids.text("rul", rule_id), "version": version, **place}


def _fresh(
    session: Session, tenant_id: UUID, drafts: Sequence[_Draft], now: datetime
) -> list[_Draft]:
    """Return the drafts without those whose text made a finding lately."""
    keys = list(
        dict.fromkeys((each.judge.id, each.dedupe) for each in drafts if each.dedupe is not None)
    )
    if not keys:
        return list(drafts)
    rules, texts = zip(*keys, strict=True)
    values = {
        "tenant": tenant_id,
        "now": now,
        "keep": DEDUPE_FOR,
        "rules": list(rules),
        "texts": list(texts),
    }
    fresh = set(cursor(session).execute(_DEDUPE, values).fetchall())
    kept = []
    for each in drafts:
        key = each.judge.id, each.dedupe
        if each.dedupe is None or key in fresh:
            kept.append(each)
            fresh.discard(key)
    return kept


def _within_limits(
    session: Session,
    tenant_id: UUID,
    drafts: Sequence[_Draft],
    books: Mapping[Judge, _Books],
    now: datetime,
) -> list[NewFinding]:
    """Return the findings that the hour still has room for, and count the others."""
    rules = list({each.judge.id for each in drafts})
    if not rules:
        return []
    rows = cursor(session).execute(_FOUND, (tenant_id, now, rules)).fetchall()
    used = {rule: int(found) for rule, found in rows}
    kept = []
    for judge, new, _ in drafts:
        if used.get(judge.id, 0) < judge.max_per_hour:
            used[judge.id] = used.get(judge.id, 0) + 1
            books[judge].found += 1
            kept.append(new)
        else:
            books[judge].withheld += 1
            books[judge].last_withheld = new.session_id, new.record_id
    return kept


def _count(
    session: Session,
    tenant_id: UUID,
    judges: Sequence[Judge],
    books: Sequence[_Books],
    now: datetime,
) -> None:
    """Add to the row of each rule's hour."""
    for judge, book in zip(judges, books, strict=True):
        if book.matched:
            session_id, record_id = book.last_withheld
            values = {
                "tenant": tenant_id,
                "rule": judge.id,
                "now": now,
                "matched": book.matched,
                "found": book.found,
                "withheld": book.withheld,
                "session": session_id,
                "record": record_id,
                "version": judge.version,
            }
            cursor(session).execute(_COUNT, values)


def _write_errors(session: Session, tenant_id: UUID, judge: Judge, book: _Books) -> None:
    if not book.errors:
        return
    values = {
        "tenant": tenant_id,
        "rule": judge.id,
        "version": judge.version,
        "errors": book.errors,
        "ended": book.ended,
        "last": fields.json_text(book.last_error),
        "at": book.off and book.off.at,
    }
    cur = cursor(session)
    cur.execute(_ERRORS, values)
    if book.off is None or cur.execute(_SWITCH_OFF, values).fetchone() is None:
        return
    about = book.off
    new = NewFinding(
        about.id if about.is_session else None,
        judge.name,
        Severity.HIGH,
        f"The rule {judge.name} was switched off: it took too much time or memory"[:500],
        f"An evaluation of its version {judge.version} was ended {MOST_ENDED} times, the last "
        "time here. What it has not judged is left to a backfill. Change it, then enable it.",
        {"rule": _named(judge.id, judge.version), "switched_off": "too_costly"},
        None if about.is_session else about.id,
    )
    findings.add(session, caller(tenant_id), [new], Source.RULE)
    chain.append(
        session,
        tenant_id,
        SYSTEM,
        "rule.disable",
        target=("rule", ids.text("rul", judge.id)),
        details={"version": judge.version, "reason": "too_costly", **book.last_error},
    )
