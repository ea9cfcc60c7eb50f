"""What became of traces that exporters sent: waiting, records, dropped, or rejected and why."""

import enum
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from app import ids
from app.core.callers import Caller
from app.core.traces import staging
from app.database import Tx, cursor
from app.models import Trace
from app.schemas import fields
from app.schemas.schema import AnswerSchema

MOST_COUNTED = 1_000
"""There may be millions, and each look would read them all."""


class TraceStatus(enum.StrEnum):
    """States of a trace."""

    STAGED = "staged"
    ASSEMBLED = "assembled"
    INCOMPLETE = "incomplete"
    DROPPED = "dropped"
    REJECTED = "rejected"


# Each reads the index by status.
_COUNTS = " UNION ALL ".join(
    f"""
SELECT '{status}', (SELECT count(*) FROM (
        SELECT FROM traces WHERE tenant_id = %(tenant)s AND status = '{status}'
           AND (%(pin)s::uuid IS NULL OR pin = %(pin)s)
         LIMIT {MOST_COUNTED + 1}) AS few)"""
    for status in TraceStatus
)


class TraceSchema(AnswerSchema):
    """A trace that exporters sent."""

    trace_id = fields.AnyText(
        description="In hex; empty for all spans whose trace's id cannot be one."
    )
    status = fields.Choice(
        TraceStatus,
        description="`staged` waits for its root or for more spans; `incomplete` became a record "
        "without its root; `dropped` had no span of an agent, a tool or a model.",
    )
    spans = fields.Count(description="Those that were taken.")
    bytes = fields.Count()
    reason = fields.AnyText(allow_none=True, description="Why it was dropped or rejected.")
    record_ids = fields.Items(fields.Id("rec"), max_items=1_000_000)
    service = fields.AnyText(allow_none=True, description="`service.name` of its resource.")
    exporter = fields.AnyText(allow_none=True, description="The user agent that sent it.")
    at = fields.Time(description="When its last span came.")


def represent(trace: Trace) -> dict[str, Any]:
    """Return a trace as JSON."""
    return TraceSchema.of(
        trace,
        trace_id=trace.trace_id.hex(),
        record_ids=[ids.text("rec", each) for each in trace.record_ids],
    )


def rows(
    session: Session,
    caller: Caller,
    before: UUID | None,
    limit: int,
    *,
    status: TraceStatus | None = None,
) -> Sequence[Trace]:
    """Return up to `limit` traces, the one that came last first, older than `before`.

    A pinned key sees those that keys with its pin sent.
    """
    found = select(Trace).options(defer(Trace.assembled)).where(Trace.tenant_id == caller.tenant_id)
    if caller.pin is not None:
        found = found.where(Trace.pin == staging.scope_of(caller.pin))
    if status is not None:
        found = found.where(Trace.status == status)
    if before is not None:
        found = found.where(Trace.id < before)
    return session.scalars(found.order_by(Trace.id.desc()).limit(limit)).all()


def counts(tx: Tx, caller: Caller) -> dict[TraceStatus, int]:
    """Return how many traces are in each state, counted up to one more than `MOST_COUNTED`."""
    pin = None if caller.pin is None else staging.scope_of(caller.pin)
    found = cursor(tx).execute(_COUNTS, {"tenant": caller.tenant_id, "pin": pin}).fetchall()
    return {TraceStatus(status): count for status, count in found}


FORGOTTEN_AT_ONCE = 1_000
# A program that sends all of its spans here has a dropped trace for each of its requests.
_DROPPED_FOR = timedelta(days=1)
_FORGET = """
DELETE FROM traces WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM traces
     WHERE status <> 'staged'
       AND (at < %s OR status = 'dropped' AND at < clock_timestamp() - %s)
     LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def forget_old(session: Session, before: datetime) -> int:
    """Delete a batch of old traces, in a session that sees all tenants; return how many."""
    values = (before, _DROPPED_FOR, FORGOTTEN_AT_ONCE)
    return cursor(session).execute(_FORGET, values).rowcount
