"""Monitors that heads reach the log, that leaves are integrated, and that quorums are met.

Judged by age: the oldest entry that no anchor covers, and the oldest leaf that waits. The rows of
jobs only tell the reason.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from app import ids
from app.core.anchoring import checkpoint_round, cosigning, heads, incidents, quorum
from app.core.jobs import job_queue
from app.core.log import generations
from app.core.log.publication import Published
from app.database import cursor, database_now
from app.ledger.policy import Policy
from app.settings import Settings

HEADS = "heads"
LOG = "log"
QUORUM = "quorum"
PARTS = (HEADS, LOG, QUORUM)
# So many checkpoints in a row without a quorum are no accident.
MOST_UNMET = 3

# Allowance for steps that should take seconds.
LATE = timedelta(minutes=5)
# An entry waits for the next tick, and some time more.
OVERDUE = checkpoint_round.EVERY + LATE
# Of the minute between the tick that asks for heads and the one that checks.
CHANCE = timedelta(seconds=30)

_OLDEST_LEAF = "SELECT id FROM log_leaves WHERE leaf_index IS NULL ORDER BY id LIMIT 1"
_PREPARED = """
SELECT prepared_at, unpublished_note IS NOT NULL FROM checkpoints
 WHERE note IS NULL AND generation = (SELECT max(generation) FROM log_generations)
"""
# The first entry of any chain that no anchor covers. One beyond the chain's end covers nothing.
_OLDEST_ENTRY = """
SELECT min(e.at) FROM audit_heads AS h JOIN tenants AS t ON t.id = h.tenant_id
 CROSS JOIN LATERAL (SELECT coalesce(max(a.seq), 0) AS seq FROM audit_anchors AS a
                      WHERE a.tenant_id = t.id AND a.seq <= h.seq) AS anchored
  JOIN audit_entries AS e ON e.tenant_id = t.id AND e.seq = anchored.seq + 1
 WHERE h.seq > h.anchored AND t.anchoring_enabled
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
    just now has not been asked: no incident begins while a witness has cosigned none of the newest.
    """
    expected = {(each.key.name, each.key.key_hash) for each in cosigning.asked(policy)}
    newest = cursor(session).execute(_COSIGNED, (MOST_UNMET,), binary=True).fetchall()
    is_met = policy is not None and any(
        quorum.is_met(policy, bytes(note), lines) for note, _, lines, _, _ in newest
    )
    if not expected or is_met:
        incidents.end(session, QUORUM)
        return
    answered = {place for row in newest for place in zip(row[3], map(bytes, row[4]), strict=True)}
    if len(newest) == MOST_UNMET and expected <= answered:
        incidents.begin(
            session,
            QUORUM,
            newest[-1][1],
            f"Each witness answers, and none of the newest {MOST_UNMET} checkpoints that were"
            " cosigned has the quorum of WITNESS_POLICY.",
        )


def watch_log(session: Session) -> None:
    """Note that the log takes nothing in, or does again."""
    prepared = cursor(session).execute(_PREPARED).fetchone()
    leaf = cursor(session).execute(_OLDEST_LEAF).fetchone()
    times = [prepared[0]] if prepared is not None and prepared[0] is not None else []
    times += [ids.made_at(leaf[0])] if leaf is not None else []
    since: datetime | None = min(times, default=None)
    if since is None or database_now(session) - since < LATE:
        incidents.end(session, LOG)
        return
    generation = generations.newest(session)
    halted = None if generation is None else generation.trouble
    why = f"the log is halted ({halted})" if halted else "no worker takes them in"
    if not halted and prepared is not None and prepared[1]:
        why = "it is signed, and its quorum of witnesses has not cosigned it"
    incidents.begin(session, LOG, since, f"Leaves wait for a checkpoint: {why}.")


def unanchored_since(session: Session) -> datetime | None:
    """Return when the oldest entry that no anchor covers was made, of the chains to be anchored.

    In a session that sees all tenants; one index probe a chain that has moved on.
    """
    row = cursor(session).execute(_OLDEST_ENTRY).fetchone()
    return None if row is None else row[0]


def watch_heads(session: Session) -> None:
    """Note that heads of chains are not anchored, or are again, in a session that sees all tenants.

    No incident begins before their job has had a chance: after a standstill the clock rings the
    tick that asks for it and the one that checks at the same moment.
    """
    since = unanchored_since(session)
    if since is None or database_now(session) - since < OVERDUE:
        incidents.end(session, HEADS)
        return
    job = job_queue.last_of(session, kind=heads.KIND, dedupe_key=heads.KEY)
    if job is None:
        why = "The clock does not ask for it: see that the scheduler and a worker are up."
    else:
        ago = database_now(session) - job.run_at
        if job.finished_at is not None and ago > OVERDUE:
            # No tick asked for heads lately.
            heads.enqueue_due(session)
            return
        if job.error is None and timedelta(0) <= ago < CHANCE:
            return
        why = job.error or (
            "No worker runs the job that anchors them: see that one is up."
            if job.finished_at is None
            else "The job that anchors them leaves them out: look for audit_chain_not_sealed."
        )
    incidents.begin(session, HEADS, since, why)


@dataclass(frozen=True)
class QuorumGate:
    """Admits what the policy's quorum has cosigned; `grace` is how long it may take to."""

    policy: Policy
    grace: timedelta

    def admits(self, session: Session, candidate: Published) -> bool:
        """Say whether a candidate may be published; if not, have its witnesses asked.

        The empty tree needs no quorum: there is only one.
        """
        if candidate.checkpoint.size == 0:
            return True
        if quorum.is_met(self.policy, candidate.note, quorum.lines(session, candidate)):
            incidents.end(session, QUORUM)
            return True
        missing = cosigning.enqueue_now(session, self.policy, candidate)
        since = candidate.signed_at
        if since is not None and database_now(session) - since >= self.grace:
            incidents.begin(
                session,
                QUORUM,
                since,
                f"Nothing is published before the quorum of WITNESS_POLICY has cosigned size"
                f" {candidate.checkpoint.size}. Not cosigned by {'; '.join(missing)}",
            )
        return False


def gate(settings: Settings) -> QuorumGate | None:
    """Return the gate that the settings ask for; without one every checkpoint is published."""
    if settings.witness_policy is None or not settings.log_require_quorum:
        return None
    return QuorumGate(settings.witness_policy, settings.log_quorum_grace)
