"""Rules: create, read, change, switch on and off, delete; each change a version, audited.

Whoever changes one locks the tenant's row in `rule_turns`, as whoever writes verdicts does. A
period of a version ends and the next begins at the clock's time under that lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.rows import class_row
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller
from app.core.rules.evaluators import Evaluators
from app.core.rules.rule_schemas import COLUMNS, MAX_PER_HOUR, Watched
from app.database import cursor, database_now
from app.errors import Conflict, FieldError, Invalid, NotFound, RuleNameInUse, TooManyRules
from app.models import Rule, RuleVersion

MOST_RULES = 100
_EXPRESSIONS = ("when", "title", "detail", "dedupe")


@dataclass(frozen=True)
class Hour:
    """A rule's matches in an hour: findings made, and findings withheld by its limit."""

    hour: datetime
    matched: int
    found: int
    withheld: int


_COUNTS = """
SELECT wanted.rule_id,
       coalesce(sum(matched) FILTER (
           WHERE hour = date_trunc('hour', clock_timestamp(), 'UTC')), 0)::bigint,
       coalesce(sum(matched), 0)::bigint
  FROM (SELECT unnest(%(rules)s::uuid[]) AS rule_id) AS wanted
  LEFT JOIN rule_hours AS h ON h.tenant_id = %(tenant)s AND h.rule_id = wanted.rule_id
       AND h.hour > date_trunc('hour', clock_timestamp(), 'UTC') - interval '24 hours'
 GROUP BY wanted.rule_id
"""
_HOURS = """
SELECT hour, coalesce(matched, 0) AS matched, coalesce(found, 0) AS found,
       coalesce(withheld, 0) AS withheld
  FROM generate_series(date_trunc('hour', clock_timestamp(), 'UTC') - %(hours)s * interval '1 hour',
                       clock_timestamp(), interval '1 hour') AS hour
  LEFT JOIN (SELECT * FROM rule_hours WHERE tenant_id = %(tenant)s AND rule_id = %(rule)s) AS h
       USING (hour)
 ORDER BY hour
"""


_LOCK = "SELECT FROM rule_turns WHERE tenant_id = %s FOR NO KEY UPDATE"
_CHANGE = """
UPDATE rule_turns SET changed_at = clock_timestamp() WHERE tenant_id = %s RETURNING changed_at
"""
_BEGIN = """
INSERT INTO rule_periods (tenant_id, rule_id, version, since) VALUES (%s, %s, %s, %s)
"""
_END = """
UPDATE rule_periods SET until = %s WHERE tenant_id = %s AND rule_id = %s AND until IS NULL
"""


def check(evaluators: Evaluators, wanted: Mapping[str, Any]) -> None:
    """Compile the expressions of a rule, with no transaction open.

    Raises `Invalid` with the field, line and column of each that does not compile.
    """
    texts = {name: wanted.get(name) for name in _EXPRESSIONS}
    refused = evaluators.check(str(wanted["on"]), texts)
    if refused:
        raise Invalid(
            *(
                FieldError(f"/{name}", f"Line {line}, column {column}: {detail}", line, column)
                for name, (line, column, detail) in refused.items()
            )
        )


def prepare(session: Session, tenant_id: UUID) -> None:
    """Have the tenant's records noted for judging, before the transaction of its first rule.

    A record whose transaction began earlier may not be noted: it is older than any period of a rule
    that is made afterwards.
    """
    cursor(session).execute(
        "INSERT INTO rule_turns (tenant_id) VALUES (%s) ON CONFLICT DO NOTHING", (tenant_id,)
    )


def create(session: Session, caller: Caller, wanted: Mapping[str, Any]) -> Watched:
    """Create a rule whose expressions were checked; `prepare` was committed before.

    Raises `RuleNameInUse` and `TooManyRules`.
    """
    now = _lock(session, caller.tenant_id)
    live = select(func.count()).where(Rule.tenant_id == caller.tenant_id, Rule.deleted_at.is_(None))
    if (session.scalar(live) or 0) >= MOST_RULES:
        raise TooManyRules(f"There are {MOST_RULES} rules; delete one first.")
    given = {name: wanted.get(name) for name in COLUMNS}
    given["max_per_hour"] = given["max_per_hour"] or MAX_PER_HOUR
    rule = Rule(
        tenant_id=caller.tenant_id,
        id=ids.new(now),
        name=given["name"],
        version=1,
        enabled=bool(wanted.get("enabled")),
        created_at=now,
        updated_at=now,
    )
    session.add(rule)
    _flush(session, rule.name)
    text = _add_version(session, caller, rule, given, now)
    session.flush()
    if rule.enabled:
        _begin(session, rule, now)
    _audit(session, caller, rule, "create", {"enabled": rule.enabled, "new": _shown(text)})
    return Watched(rule, text, now, 0, 0)


def rows(session: Session, tenant_id: UUID, before: UUID | None, limit: int) -> Sequence[Watched]:
    """Return up to `limit` rules, newest first, older than `before`."""
    query = select(Rule, RuleVersion).join(RuleVersion, _is_current())
    query = query.where(Rule.tenant_id == tenant_id, Rule.deleted_at.is_(None))
    if before is not None:
        query = query.where(Rule.id < before)
    found = session.execute(query.order_by(Rule.id.desc()).limit(limit)).all()
    return _watched(session, tenant_id, [(row[0], row[1]) for row in found])


def find(session: Session, tenant_id: UUID, rule_id: UUID | None) -> Watched:
    """Return one rule; raises `NotFound` when it does not exist or was deleted."""
    query = select(Rule, RuleVersion).join(RuleVersion, _is_current())
    row = session.execute(
        query.where(Rule.tenant_id == tenant_id, Rule.id == rule_id, Rule.deleted_at.is_(None))
    ).one_or_none()
    if row is None:
        raise _not_found()
    return _watched(session, tenant_id, [(row[0], row[1])])[0]


def versions(
    session: Session, tenant_id: UUID, rule_id: UUID | None, before: int | None, limit: int
) -> Sequence[RuleVersion]:
    """Return a rule's versions, newest first, also of one that was deleted; raises `NotFound`."""
    query = select(RuleVersion).where(
        RuleVersion.tenant_id == tenant_id, RuleVersion.rule_id == rule_id
    )
    if before is not None:
        query = query.where(RuleVersion.version < before)
    found = session.scalars(query.order_by(RuleVersion.version.desc()).limit(limit)).all()
    if not found and before is None:
        raise _not_found()
    return found


def version(session: Session, tenant_id: UUID, rule_id: UUID | None, number: int) -> RuleVersion:
    """Return one version, also of a rule that was deleted; raises `NotFound`."""
    found = session.get(RuleVersion, (tenant_id, rule_id, number)) if rule_id else None
    if found is None:
        raise _not_found()
    return found


def hours(session: Session, tenant_id: UUID, rule_id: UUID, most: int) -> Sequence[Hour]:
    """Return a rule's matches in each of the last `most` hours, oldest first."""
    values = {"tenant": tenant_id, "rule": rule_id, "hours": most - 1}
    return cursor(session, class_row(Hour)).execute(_HOURS, values).fetchall()


def change(
    session: Session,
    caller: Caller,
    rule_id: UUID | None,
    wanted: Mapping[str, Any],
    checked: int | None,
) -> Watched:
    """Set the fields in `wanted`; what is evaluated gets a new version if a value changes.

    `checked` is the version with which the expressions were checked, if any was sent. Raises
    `NotFound`, `RuleNameInUse`, and `Conflict` when the rule has another version by now.
    """
    now = _lock(session, caller.tenant_id)
    before = find(session, caller.tenant_id, rule_id)
    rule, old = before.rule, before.text
    if checked is not None and checked != rule.version:
        raise Conflict("The rule was changed meanwhile. Read it again, then decide.")
    given = {name: wanted.get(name, getattr(old, column)) for name, column in COLUMNS.items()}
    changed = [name for name, column in COLUMNS.items() if given[name] != getattr(old, column)]
    was_enabled, text = rule.enabled, old
    enabled = wanted.get("enabled", was_enabled)
    if changed:
        rule.version += 1
        rule.name = given["name"]
        text = _add_version(session, caller, rule, given, now)
    if changed or (enabled and not was_enabled):
        rule.errors = rule.ended = 0
        rule.last_error_json = rule.erred_at = None
    if changed or enabled != was_enabled:
        rule.enabled, rule.updated_at = enabled, now
        _flush(session, rule.name)
        if was_enabled:
            _end(session, rule, now)
        if enabled:
            _begin(session, rule, now)
    if changed:
        details = {"old": _shown(old, changed), "new": _shown(text, changed)}
        _audit(session, caller, rule, "update", details)
    if enabled != was_enabled:
        _audit(session, caller, rule, "enable" if enabled else "disable", {"version": rule.version})
    return find(session, caller.tenant_id, rule.id)


def delete(session: Session, caller: Caller, rule_id: UUID | None) -> None:
    """Delete a rule; raises `NotFound`. Its versions stay readable, and its name becomes free."""
    now = _lock(session, caller.tenant_id)
    rule = find(session, caller.tenant_id, rule_id).rule
    if rule.enabled:
        _end(session, rule, now)
    rule.enabled, rule.deleted_at = False, now
    session.flush()
    _audit(session, caller, rule, "delete", {"version": rule.version, "name": rule.name})


def _lock(session: Session, tenant_id: UUID) -> datetime:
    """Lock the tenant's rules against verdicts and other changes; return the time under it."""
    cur = cursor(session)
    # First locked: an UPDATE that waits may have read the clock before.
    cur.execute(_LOCK, (tenant_id,))
    found = cur.execute(_CHANGE, (tenant_id,)).fetchall()
    if not found:
        raise _not_found()
    now: datetime = found[0][0]
    return now


def _flush(session: Session, name: str) -> None:
    try:
        session.flush()
    except IntegrityError as error:
        if not isinstance(error.orig, UniqueViolation):
            raise
        raise RuleNameInUse(f"Another rule is named {name}.") from None


def _add_version(
    session: Session, caller: Caller, rule: Rule, given: Mapping[str, Any], now: datetime
) -> RuleVersion:
    text = RuleVersion(
        tenant_id=rule.tenant_id,
        rule_id=rule.id,
        version=rule.version,
        **{column: given[name] for name, column in COLUMNS.items()},
        created_by=caller.actor().id,
        created_at=now,
    )
    session.add(text)
    return text


def _begin(session: Session, rule: Rule, now: datetime) -> None:
    cursor(session).execute(_BEGIN, (rule.tenant_id, rule.id, rule.version, now))


def _end(session: Session, rule: Rule, now: datetime) -> None:
    cursor(session).execute(_END, (now, rule.tenant_id, rule.id))


def _is_current() -> Any:
    return (
        (RuleVersion.tenant_id == Rule.tenant_id)
        & (RuleVersion.rule_id == Rule.id)
        & (RuleVersion.version == Rule.version)
    )


def _watched(
    session: Session, tenant_id: UUID, found: Sequence[tuple[Rule, RuleVersion]]
) -> list[Watched]:
    values = {"tenant": tenant_id, "rules": [rule.id for rule, _ in found]}
    counts = cursor(session).execute(_COUNTS, values).fetchall()
    counted = {rule_id: (hour, day) for rule_id, hour, day in counts}
    now = database_now(session)
    return [Watched(rule, text, now, *counted[rule.id]) for rule, text in found]


def _shown(text: RuleVersion, only: Sequence[str] = tuple(COLUMNS)) -> dict[str, Any]:
    """Return a version, or some of its fields, for the audit chain."""
    return {
        "version": text.version,
        **{name: getattr(text, COLUMNS[name]) for name in only},
    }


def _audit(
    session: Session, caller: Caller, rule: Rule, action: str, details: Mapping[str, Any]
) -> None:
    target = ("rule", ids.text("rul", rule.id))
    chain.append_by(session, caller, f"rule.{action}", target=target, details=details)


def _not_found() -> NotFound:
    return NotFound("There is no rule with this id.")
