"""What comes of verdicts: findings, each once, and the books of each rule.

All of it is written in the transaction that deletes the work or moves a job's cursor on. A match is
a row of `rule_matches`: one that is there already makes no finding again.
"""

from collections.abc import Iterator, Mapping, Sequence
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

    judge: Judge
    matched: int = 0
    found: int = 0
    withheld: int = 0
    last_withheld: tuple[UUID | None, UUID | None] = (None, None)
    errors: int = 0
    ended: int = 0
    last_error: dict[str, Any] = field(default_factory=dict)
    off: Work | None = None

    def note_error(self, work: Work, verdict: Verdict) -> None:
        """Count the errors of a verdict; the third evaluation that was ended switches it off."""
        self.errors += verdict.errors
        self.ended += verdict.ended
        place = {"step": verdict.step} if verdict.step is not None else {}
        name, prefix = ("session_id", "ses") if work.is_session else ("record_id", "rec")
        self.last_error = {"detail": verdict.error, name: ids.text(prefix, work.id), **place}
        if verdict.ended and self.judge.ended + self.ended >= MOST_ENDED:
            self.off = work


class _Draft(NamedTuple):
    """A finding of a match, before deduplication and the hourly limit."""

    books: _Books
    new: NewFinding
    dedupe: bytes | None = None


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
    books = [_Books(each) for each in judges]
    matched: dict[tuple[UUID, int, UUID], tuple[_Books, Work, Verdict]] = {}
    for work, verdicts in judged:
        for place, verdict in sorted(verdicts.items()):
            of_rule, judge = books[place], judges[place]
            if of_rule.off is not None:
                continue
            if verdict.errors and live:
                of_rule.note_error(work, verdict)
            if verdict.matched:
                matched[judge.id, judge.version, work.id] = of_rule, work, verdict
    drafts = _fresh(session, tenant_id, _drafts(session, tenant_id, matched), now)
    if live:
        drafts = _within_limits(session, tenant_id, drafts, now)
    new = [each.new for each in drafts]
    for start in range(0, len(new), MOST_AT_ONCE):
        part = new[start : start + MOST_AT_ONCE]
        findings.add(session, caller(tenant_id), part, Source.RULE)
    for each in books:
        _write(session, tenant_id, each, now)
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
            data={
                "rule": {"id": ids.text("rul", rule_id), "version": version},
                "withheld": withheld,
                "hour": rfc3339(hour),
            },
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


def _drafts(
    session: Session,
    tenant_id: UUID,
    matched: Mapping[tuple[UUID, int, UUID], tuple[_Books, Work, Verdict]],
) -> list[_Draft]:
    """Store the matches, and return the findings of those that were not there yet."""
    if not matched:
        return []
    counts = [verdict.matched for _, _, verdict in matched.values()]
    values = (tenant_id, *map(list, zip(*matched, strict=True)), counts)
    stored = set(cursor(session).execute(_MATCH, values).fetchall())
    drafts: list[_Draft] = []
    for key, (books, work, verdict) in matched.items():
        if key in stored:
            books.matched += verdict.matched
            drafts += _of_match(books, work, verdict)
    return drafts


def _of_match(books: _Books, work: Work, verdict: Verdict) -> Iterator[_Draft]:
    judge = books.judge
    for each in verdict.matches:
        data = {"rule": _named(judge, each.step), "matched": each.what}
        dedupe = None if each.dedupe is None else bytes.fromhex(each.dedupe)
        yield _Draft(books, _finding(work, judge, each.title, each.detail, data), dedupe)
    more = verdict.matched - len(verdict.matches)
    if more > 0:
        title = f"{judge.name}: {more:,} more steps of this record match"
        counted = {"rule": _named(judge), "more": more}
        yield _Draft(books, _finding(work, judge, title, None, counted))


def _finding(
    work: Work,
    judge: Judge,
    title: str,
    detail: str | None,
    data: Mapping[str, Any],
    severity: str | None = None,
) -> NewFinding:
    """Return a finding about a record, or a session, by default as severe as its rule says."""
    session_id, record_id = (work.id, None) if work.is_session else (None, work.id)
    severity = severity or judge.severity
    return NewFinding(session_id, judge.name, severity, title[:500], detail, data, record_id)


def _named(judge: Judge, step: int | None = None) -> dict[str, Any]:
    """Return a rule as a finding's `data` names it."""
    place = {} if step is None else {"step": step}
    return {"id": ids.text("rul", judge.id), "version": judge.version, **place}


def _fresh(
    session: Session, tenant_id: UUID, drafts: Sequence[_Draft], now: datetime
) -> Sequence[_Draft]:
    """Return the drafts without those whose text made a finding lately."""
    texts = ((each.books.judge.id, each.dedupe) for each in drafts if each.dedupe is not None)
    keys = list(dict.fromkeys(texts))
    if not keys:
        return drafts
    rules, hashes = map(list, zip(*keys, strict=True))
    values = {"tenant": tenant_id, "now": now, "keep": DEDUPE_FOR, "rules": rules, "texts": hashes}
    fresh = set(cursor(session).execute(_DEDUPE, values).fetchall())
    kept = []
    for each in drafts:
        key = each.books.judge.id, each.dedupe
        if each.dedupe is None or key in fresh:
            kept.append(each)
            fresh.discard(key)
    return kept


def _within_limits(
    session: Session, tenant_id: UUID, drafts: Sequence[_Draft], now: datetime
) -> Sequence[_Draft]:
    """Return the drafts that the hour still has room for, and count the others."""
    rules = list({each.books.judge.id for each in drafts})
    if not rules:
        return []
    used: dict[UUID, int] = dict(
        cursor(session).execute(_FOUND, (tenant_id, now, rules)).fetchall()
    )
    kept = []
    for each in drafts:
        books, rule = each.books, each.books.judge
        if used.get(rule.id, 0) < rule.max_per_hour:
            used[rule.id] = used.get(rule.id, 0) + 1
            books.found += 1
            kept.append(each)
        else:
            books.withheld += 1
            books.last_withheld = each.new.session_id, each.new.record_id
    return kept


def _write(session: Session, tenant_id: UUID, books: _Books, now: datetime) -> None:
    """Add to the row of the rule's hour, and to its errors; switch it off if it is too costly."""
    judge = books.judge
    session_id, record_id = books.last_withheld
    values = {
        "tenant": tenant_id,
        "rule": judge.id,
        "version": judge.version,
        "now": now,
        "matched": books.matched,
        "found": books.found,
        "withheld": books.withheld,
        "session": session_id,
        "record": record_id,
        "errors": books.errors,
        "ended": books.ended,
        "last": fields.json_text(books.last_error),
        "at": books.off and books.off.at,
    }
    cur = cursor(session)
    if books.matched:
        cur.execute(_COUNT, values)
    if books.errors:
        cur.execute(_ERRORS, values)
    if books.off is None or cur.execute(_SWITCH_OFF, values).fetchone() is None:
        return
    new = _finding(
        books.off,
        judge,
        f"The rule {judge.name} was switched off: it took too much time or memory",
        f"An evaluation of its version {judge.version} was ended {MOST_ENDED} times, the last "
        "time here. What it has not judged is left to a backfill. Change it, then enable it.",
        {"rule": _named(judge), "switched_off": "too_costly"},
        Severity.HIGH,
    )
    findings.add(session, caller(tenant_id), [new], Source.RULE)
    chain.append(
        session,
        tenant_id,
        SYSTEM,
        "rule.disable",
        target=("rule", ids.text("rul", judge.id)),
        details={"version": judge.version, "reason": "too_costly", **books.last_error},
    )
