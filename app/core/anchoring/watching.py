"""Watching that heads reach the log, that the log takes them in, and that witnesses meet.

Looked at by each tick, before it asks for what is due: what was due at the tick before has had ten
minutes.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from app import ids
from app.core import jobs
from app.core.anchoring import cosigning, heads, quorum, troubles
from app.core.log import generations
from app.database import cursor, database_now
from app.ledger.policy import Policy

HEADS = "heads"
LOG = "log"
QUORUM = "quorum"
PARTS = (HEADS, LOG, QUORUM)
# So many checkpoints in a row without a quorum are no accident.
MOST_UNMET = 3

# What should have happened within seconds.
LATE = timedelta(minutes=5)

_OLDEST_LEAF = "SELECT id FROM log_leaves WHERE leaf_index IS NULL ORDER BY id LIMIT 1"
_PREPARED = """
SELECT prepared_at FROM checkpoints
 WHERE note IS NULL AND generation = (SELECT max(generation) FROM log_generations)
"""
# The first entry of any chain that no anchor covers.
_OLDEST_ENTRY = """
SELECT min(e.at) FROM tenants AS t
 CROSS JOIN LATERAL (SELECT coalesce(max(a.seq), 0) AS seq FROM audit_anchors AS a
                      WHERE a.tenant_id = t.id) AS anchored
  JOIN audit_entries AS e ON e.tenant_id = t.id AND e.seq = anchored.seq + 1
 WHERE t.anchoring_enabled
"""
# The checkpoints that witnesses were asked for last and answered, newest first.
_COSIGNED = """
SELECT c.note, c.published_at, array_agg(s.line), array_agg(s.name), array_agg(s.key_hash)
  FROM checkpoint_cosignatures AS s
  JOIN checkpoints AS c ON c.generation = s.generation AND c.size = s.size
 WHERE s.generation = (SELECT max(generation) FROM log_generations) AND c.note IS NOT NULL
 GROUP BY s.size, c.note, c.published_at ORDER BY s.size DESC LIMIT %s
"""


def watch_quorum(session: Session, policy: Policy | None) -> None:
    """Note that cosignatures come and do not make the policy's quorum, or do again.

    A witness that does not answer is a trouble of its own, and one that was added to the policy
    just now has not been asked: nothing is said while a witness has cosigned none of the newest.
    """
    expected = {(each.key.name, each.key.key_hash) for each in cosigning.asked(policy)}
    newest = cursor(session).execute(_COSIGNED, (MOST_UNMET,), binary=True).fetchall()
    if policy is None or not expected or _is_any_met(policy, newest):
        troubles.end(session, QUORUM)
        return
    answered = {place for row in newest for place in zip(row[3], map(bytes, row[4]), strict=True)}
    if len(newest) == MOST_UNMET and expected <= answered:
        troubles.begin(
            session,
            QUORUM,
            newest[-1][1],
            f"Each witness answers, and none of the newest {MOST_UNMET} checkpoints that were"
            " cosigned has the quorum of WITNESS_POLICY.",
        )


def _is_any_met(policy: Policy, newest: Sequence[Sequence[Any]]) -> bool:
    return any(quorum.is_met(policy, bytes(row[0]), row[2]) for row in newest)


def watch(session: Session) -> None:
    """Note what does not get anywhere, or does again, in a session that sees all tenants."""
    now = database_now(session)
    _watch_log(session, now)
    _watch_heads(session, now)


def _watch_log(session: Session, now: datetime) -> None:
    since = _waiting_since(session)
    if since is None or now - since < LATE:
        troubles.end(session, LOG)
        return
    generation = generations.newest(session)
    halted = None if generation is None else generation.trouble
    why = f"the log is halted ({halted})" if halted else "no worker takes them in"
    troubles.begin(session, LOG, since, f"Leaves wait for a checkpoint: {why}.")


def _waiting_since(session: Session) -> datetime | None:
    cur = cursor(session)
    leaf = cur.execute(_OLDEST_LEAF).fetchone()
    prepared = cur.execute(_PREPARED).fetchone()
    times = [] if leaf is None else [ids.made_at(leaf[0])]
    return min(times + ([] if prepared is None else [prepared[0]]), default=None)


def _watch_heads(session: Session, now: datetime) -> None:
    """A run that is due for minutes, or that failed, keeps every chain waiting."""
    job = jobs.last_of(session, kind=heads.KIND, dedupe_key=heads.KEY)
    failed = job is not None and job.error is not None and job.status != "succeeded"
    late = job is not None and job.finished_at is None and now - job.run_at > LATE
    if job is None or not (failed or late):
        troubles.end(session, HEADS)
        return
    row = cursor(session).execute(_OLDEST_ENTRY).fetchone()
    since = now if row is None or row[0] is None else row[0]
    troubles.begin(session, HEADS, since, job.error or "No worker runs the job that anchors them.")
