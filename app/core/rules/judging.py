"""A turn at a tenant's work: claim, read, judge outside any transaction, record.

Work is deleted in the transaction that writes its verdicts, under the lock that every change of a
rule takes. So each record is judged once by the version that was on when it was created, wherever a
worker dies, and whatever commits late.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app.core.rules import matches, subjects
from app.core.rules.evaluators import QUICK, SLOW, Evaluators, Judged, Subject, Verdict
from app.core.rules.language import RuleText
from app.core.rules.matches import Judge
from app.core.rules.subjects import Seen, Work
from app.database import cursor
from app.lib.crypto.sealing import MasterKeys

# For so long no other worker takes the turn; if one does, one of them writes the verdicts. Renewed
# while a subject takes long: else each worker in turn would give its slow evaluator to it.
LEASE = timedelta(seconds=10)
SLICE_SECONDS = 0.5
"""About how long one batch is judged."""

MOST_WORK = 500
# Of one transaction; the rest is judged again.
_MOST_FINDINGS = 2_000
# A tenant whose rules were slow is served by the slow evaluator for so long.
_SLOW_FOR = timedelta(minutes=5)
# Work that commits later than this behind its time is found once a minute.
_LATE = timedelta(minutes=2)

_WORK_FROM = """
CASE WHEN date_part('second', clock_timestamp()) < 3 THEN 'epoch' ELSE t.work_from END
"""
# A tenant is due with work that nobody is at, or with an hour that ended and is to be told.
DUE = f"""
SELECT t.tenant_id FROM rule_turns AS t
 WHERE (t.locked_until IS NULL OR t.locked_until < clock_timestamp())
   AND t.tenant_id NOT IN (SELECT id FROM tenants WHERE suspended_at IS NOT NULL)
   AND (EXISTS (SELECT FROM rule_work AS w
                 WHERE w.tenant_id = t.tenant_id AND w.at >= {_WORK_FROM})
        OR EXISTS (SELECT FROM rule_hours AS h
                    WHERE h.tenant_id = t.tenant_id AND h.withheld > 0 AND NOT h.told
                      AND h.hour < date_trunc('hour', clock_timestamp(), 'UTC')))
 ORDER BY random()
"""
_CLAIM = """
UPDATE rule_turns SET locked_until = clock_timestamp() + %(lease)s
 WHERE tenant_id = %(tenant)s
   AND (locked_until IS NULL OR locked_until < clock_timestamp())
RETURNING tenant_id, coalesce(slow_until > clock_timestamp(), false) AS slow
"""
_RENEW = """
UPDATE rule_turns SET locked_until = clock_timestamp() + %(lease)s WHERE tenant_id = %(tenant)s
"""
_LEAVE = """
UPDATE rule_turns SET locked_until = NULL,
       slow_until = CASE WHEN %(slow)s THEN clock_timestamp() + %(slow_for)s ELSE slow_until END
 WHERE tenant_id = %(tenant)s
"""
_CHANGED = "SELECT changed_at FROM rule_turns WHERE tenant_id = %s"
_WORK = f"""
SELECT w.at, w.subject_id AS id, w.is_session
  FROM rule_work AS w JOIN rule_turns AS t ON t.tenant_id = w.tenant_id
 WHERE w.tenant_id = (SELECT %(tenant)s::uuid) AND w.at >= {_WORK_FROM}
 ORDER BY w.at, w.subject_id LIMIT {MOST_WORK}
"""
_JUDGES = """
SELECT p.since, p.until, v.rule_id, v.version, v.name, v.subject, v.condition, v.severity, v.title,
       v.detail, v.dedupe, v.max_per_hour, CASE WHEN r.version = v.version THEN r.ended ELSE 0 END
  FROM rule_periods AS p
  JOIN rule_versions AS v ON v.tenant_id = p.tenant_id AND v.rule_id = p.rule_id
       AND v.version = p.version
  JOIN rules AS r ON r.tenant_id = p.tenant_id AND r.id = p.rule_id
 WHERE p.tenant_id = %(tenant)s AND p.since <= %(newest)s
   AND (p.until IS NULL OR p.until > %(oldest)s)
 ORDER BY v.rule_id, v.version
"""
_HOLD = "SELECT changed_at FROM rule_turns WHERE tenant_id = %s FOR NO KEY UPDATE"
_DELETE = """
DELETE FROM rule_work AS w USING unnest(%(at)s::timestamptz[], %(ids)s::uuid[]) AS done (at, id)
 WHERE w.tenant_id = %(tenant)s AND w.at = done.at AND w.subject_id = done.id
"""
_ADVANCE = """
UPDATE rule_turns SET work_from = %(at)s::timestamptz - %(late)s
 WHERE tenant_id = %(tenant)s AND work_from < %(at)s::timestamptz - %(late)s
"""


class NotOurs(Exception):
    """Another worker has judged this, or a rule changed: what is left is judged again."""


@dataclass(frozen=True)
class Turn:
    """A claim of a tenant's work; `slow`: its rules go to the slow evaluator."""

    tenant_id: UUID
    slow: bool


@dataclass(frozen=True)
class Batch:
    """Work with what its rules see: `judges` by their places, and the periods of each.

    Work that is not `seen` yet is left to the next batch, unless no rule is for it.
    """

    changed_at: datetime | None
    work: Sequence[Work]
    judges: Sequence[Judge]
    periods: Sequence[Sequence[tuple[datetime, datetime | None]]]
    seen: Mapping[UUID, Seen]

    def rules_of(self, work: Work) -> list[int]:
        """Return the places of the judges that were on when this was created or completed."""
        return [
            place
            for place, judge in enumerate(self.judges)
            if (judge.text.on == "session") == work.is_session
            and any(
                since <= work.at and (until is None or work.at < until)
                for since, until in self.periods[place]
            )
        ]


def claim(session: Session, tenant_id: UUID) -> Turn | None:
    """Claim a tenant's work under a lease; None when another worker has it, or there is none."""
    values = {"tenant": tenant_id, "lease": LEASE}
    return cursor(session, class_row(Turn)).execute(_CLAIM, values).fetchone()


def renew(session: Session, turn: Turn) -> None:
    """Renew the lease of a turn."""
    cursor(session).execute(_RENEW, {"tenant": turn.tenant_id, "lease": LEASE})


def leave(session: Session, turn: Turn, *, slow: bool) -> None:
    """End a turn; `slow`: the next ones go to the slow evaluator."""
    values = {"tenant": turn.tenant_id, "slow": slow, "slow_for": _SLOW_FOR}
    cursor(session).execute(_LEAVE, values)


def read(session: Session, master_keys: MasterKeys, tenant_id: UUID) -> Batch | None:
    """Return the oldest work with what its rules see; None when there is none.

    The last change is read before the rules: one that commits in between is found out in `record`.
    """
    (changed_at,) = cursor(session).execute(_CHANGED, (tenant_id,)).fetchone() or (None,)
    values = {"tenant": tenant_id}
    work = cursor(session, class_row(Work)).execute(_WORK.encode(), values).fetchall()
    if not work:
        return None
    judges, periods = _judges(session, tenant_id, work)
    batch = Batch(changed_at, work, judges, periods, {})
    wanted = [each for each in work if batch.rules_of(each)]
    seen, left = subjects.read(session, master_keys, tenant_id, wanted)
    ready = next((at for at, each in enumerate(work) if each.id in left), len(work))
    return Batch(changed_at, work[:ready], judges, periods, seen)


def judge(evaluators: Evaluators, turn: Turn, batch: Batch, alive: Callable[[], object]) -> Judged:
    """Judge what rules see of a batch, as far as its time reaches; raises as `Evaluators.judge`."""
    wanted = [
        Subject(seen.facts, seen.bundle, batch.rules_of(each))
        for each in batch.work
        if (seen := batch.seen.get(each.id)) is not None
    ]
    return evaluators.judge(
        SLOW if turn.slow else QUICK,
        [each.text for each in batch.judges],
        wanted,
        seconds=SLICE_SECONDS,
        ended=[each.ended for each in batch.judges],
        patience=0.0 if turn.slow else 1.0,
        alive=alive,
    )


def record(session: Session, turn: Turn, batch: Batch, judged: Judged) -> int:
    """Write the verdicts and delete their work; return how much of it was done.

    Raises `NotOurs`, which must roll back, unless work and rules are as they were read.
    """
    if cursor(session).execute(_HOLD, (turn.tenant_id,)).fetchone() != (batch.changed_at,):
        raise NotOurs
    verdicts = iter(judged.verdicts)
    done: list[tuple[Work, Mapping[int, Verdict]]] = []
    described = 0
    for each in batch.work:
        verdict = next(verdicts, None) if each.id in batch.seen else {}
        if verdict is None or described > _MOST_FINDINGS:
            break
        described += sum(len(found.matches) for found in verdict.values())
        done.append((each, verdict))
    if not done:
        return 0
    at, ids = [each.at for each, _ in done], [each.id for each, _ in done]
    cur = cursor(session)
    cur.execute(_DELETE, {"tenant": turn.tenant_id, "at": at, "ids": ids})
    if cur.rowcount != len(done):
        raise NotOurs
    cur.execute(_ADVANCE, {"tenant": turn.tenant_id, "at": at[-1], "late": _LATE})
    matches.commit(session, turn.tenant_id, batch.judges, done)
    return len(done)


def _judges(
    session: Session, tenant_id: UUID, work: Sequence[Work]
) -> tuple[list[Judge], list[list[tuple[datetime, datetime | None]]]]:
    """Return the versions that were on at some time of the work, and their periods."""
    values = {"tenant": tenant_id, "oldest": work[0].at, "newest": work[-1].at}
    periods: dict[Judge, list[tuple[datetime, datetime | None]]] = {}
    for since, until, *row in cursor(session).execute(_JUDGES, values):
        rule_id, version, name, on, when, severity, title, detail, dedupe, most, ended = row
        text = RuleText(on, when, title, detail, dedupe)
        found = Judge(rule_id, version, name, severity, most, text, ended)
        periods.setdefault(found, []).append((since, until))
    return list(periods), list(periods.values())
