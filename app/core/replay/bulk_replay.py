"""Bulk replay: a job that walks over a selection and makes a replay of each event.

A step's replays, the job's cursor and its progress commit together, so a killed job resumes. Rows
that have settled meanwhile are skipped. Live events go first.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core import wakeups
from app.core.audit import chain
from app.core.callers import Caller
from app.core.delivery.events import PRIORITY_BULK
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import JobFailed, Step
from app.core.replay import replay_selection
from app.core.replay.replay_selection import Selection, Source, Wanted
from app.core.webhooks import webhooks
from app.database import cursor
from app.errors import NotFound, WebhookDisabled
from app.models import Job

KIND = "bulk_replay"
MOST_A_STEP = 500


def preview(session: Session, caller: Caller, webhook_id: UUID | None, wanted: Wanted) -> int:
    """Return how many events would be sent again now; raises `NotFound`."""
    webhook = webhooks.find(session, caller, webhook_id)
    selection = Selection.now(session, webhook.id, wanted)
    return replay_selection.count(session, caller.tenant_id, selection)


def start(
    session: Session,
    caller: Caller,
    webhook_id: UUID | None,
    wanted: Wanted,
    *,
    rate: int | None,
) -> Job:
    """Enqueue the replay of what is wanted, at most `rate` events a second; return its job.

    Raises `NotFound` and `WebhookDisabled`.
    """
    # Outcomes are recorded under the same lock, so none of before the selection is still to come.
    webhook = webhooks.lock(session, caller.tenant_id, webhook_id)
    webhooks.require_enabled(webhook)
    selection = Selection.now(session, webhook.id, wanted)
    total = replay_selection.count(session, caller.tenant_id, selection)
    args = {**selection.to_args(), "rate": rate}
    job = job_queue.enqueue(
        session,
        caller.tenant_id,
        kind=KIND,
        args=args,
        progress={"total": total, "done": 0, "skipped": 0},
    )
    chain.append(
        session,
        caller.tenant_id,
        caller.actor(),
        "deliveries.replay",
        target=("webhook", args["webhook_id"]),
        details={
            "job_id": ids.text("job", job.id),
            "count": total,
            **{name: args[name] for name in ("status", "since", "until", "rate")},
        },
        request_id=caller.request_id,
    )
    return job


def step(session: Session, tenant_id: UUID, job: Job) -> Step:
    """Replay the next sources of a job: at most 500, and at most one second's worth of its rate.

    Raises `JobFailed` when the webhook was disabled or deleted meanwhile.
    """
    args = job_rows.args_of(job)
    selection, rate = Selection.from_args(args), args["rate"]
    _lock(session, tenant_id, selection.webhook_id)
    table, after = _read_cursor(job.cursor, selection)
    limit = min(MOST_A_STEP, rate or MOST_A_STEP)
    sources = replay_selection.pick(session, tenant_id, selection, table, after=after, limit=limit)
    selected = [source for source in sources if source.selected]
    due = [source for source in selected if not source.settled]
    made = _replay(session, job, selection.webhook_id, due) if due else 0
    return Step(
        _next_cursor(selection, table, sources[-1].id if len(sources) == limit else None),
        _add(json.loads(job.progress or "{}"), done=made, skipped=len(selected) - made),
        timedelta(seconds=made / rate) if rate else timedelta(0),
    )


def _lock(session: Session, tenant_id: UUID, webhook_id: UUID) -> None:
    """Lock the lane: replays of one webhook are made one after another, so none is made twice."""
    try:
        webhooks.require_enabled(webhooks.lock(session, tenant_id, webhook_id))
    except NotFound:
        raise JobFailed("The webhook was deleted; what was not replayed yet stays so.") from None
    except WebhookDisabled:
        raise JobFailed(
            "The webhook was disabled. Enable it and retry this job: it goes on where it stopped."
        ) from None


_REPLAY = f"""
WITH made AS (
    INSERT INTO deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                            sequence, replay_of, job_id, next_attempt_at)
    SELECT %(tenant)s, new.id, %(webhook)s, e.id, e.type, 'replay', {PRIORITY_BULK}, new.sequence,
           new.replay_of, %(job)s, clock_timestamp()
      FROM unnest(%(ids)s::uuid[], %(events)s::uuid[], %(sequences)s::bigint[],
                  %(replays_of)s::uuid[]) AS new (id, event_id, sequence, replay_of)
      JOIN events AS e ON e.tenant_id = %(tenant)s AND e.id = new.event_id
     WHERE e.id = ANY (%(events)s)
    RETURNING 1
), counted AS (
    SELECT count(*) AS n FROM made
)
UPDATE lanes
   SET replays_accepted = replays_accepted + counted.n,
       due_at = least(due_at, greatest(clock_timestamp(), paused_until))
  FROM counted WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
RETURNING counted.n
"""


def _replay(session: Session, job: Job, webhook_id: UUID, due: Sequence[Source]) -> int:
    """Make a replay of each source whose event is still kept; return how many."""
    made = cursor(session).execute(
        _REPLAY,
        {
            "tenant": job.tenant_id,
            "webhook": webhook_id,
            "job": job.id,
            "ids": sorted(ids.new() for _ in due),
            "events": [source.event_id for source in due],
            "sequences": [source.sequence for source in due],
            "replays_of": [source.replay_of for source in due],
        },
    )
    wakeups.ring_lanes(session, [(job.tenant_id, webhook_id)])
    row = made.fetchone()
    return int(row[0]) if row else 0


def _read_cursor(text: str | None, selection: Selection) -> tuple[str, UUID]:
    """Return the table to walk over and the id after which to go on."""
    if text is None:
        return selection.tables()[0], UUID(int=0)
    table, _, last = text.partition(":")
    return table, UUID(hex=last)


def _next_cursor(selection: Selection, table: str, last: UUID | None) -> str | None:
    """Return where to go on: after `last`, or with the next table; None when all is walked over."""
    if last is not None:
        return f"{table}:{last.hex}"
    tables = selection.tables()
    rest = tables[tables.index(table) + 1 :]
    return f"{rest[0]}:{UUID(int=0).hex}" if rest else None


def _add(progress: Mapping[str, int], *, done: int, skipped: int) -> dict[str, int]:
    return {
        "total": progress["total"],
        "done": progress["done"] + done,
        "skipped": progress["skipped"] + skipped,
    }
