"""Agents, their sessions with their way over records, and the traces that exporters sent."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any
from uuid import UUID

from flask import url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response
from werkzeug.wrappers import Response as AnyResponse

from app import ids
from app.api.http import large_work
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import caller, reads_objects, services, transaction
from app.api.resources.agents import list_agents
from app.api.resources.sessions import list_sessions, read_evidence, read_statement
from app.api.resources.traces import list_traces
from app.clock import rfc3339
from app.console.frame import forms, lists, rendering, zone
from app.console.frame.access import Pages
from app.core import agents, feeds, findings, sessions
from app.core.audit import record_reads
from app.core.delivery import hours
from app.core.delivery.history import delivery_list
from app.core.delivery.history.delivery_list import Filters
from app.core.delivery.hours import Step
from app.core.keys import keys
from app.core.records import activity, bundles, holds, records, statements
from app.core.sessions import SessionStatus
from app.core.traces import traces
from app.core.traces.traces import TraceStatus
from app.database import database_now
from app.errors import Invalid, NotFound
from app.evidence import bundle
from app.evidence.bundle import Bundle
from app.evidence.page.rendering import Axis, as_tree, duration, row_of, span_of
from app.evidence.times import unix_nanoseconds
from app.models import AgentSession, Finding, Record

sessions_blp = Pages("sessions", "/sessions", whole_tenant=False)

# A page of 50 records reads and writes so much in half of its time.
_MOST_HOLDS, _MOST_FINDINGS, _MOST_DELIVERIES = 10, 20, 200
_MOST_BYTES, _MOST_STEPS, _MOST_STEPS_OF_ONE = 512 * 1024, 300, 50
# Shorter pauses are in the bars alone.
_IDLE = 60 * 1_000_000_000


def listed(session: AgentSession) -> dict[str, Any]:
    """Return a session as its GET answers it, with when it was sealed."""
    return sessions.represent(session) | {"sealed_at": session.sealed_at}


lists.serve(
    sessions_blp,
    "sessions",
    list_sessions,
    files=True,
    show=listed,
    beside=lambda session, _, found: {"did": activity.of(session, caller(), "ses", found["data"])},
    shown={"statuses": forms.choices(SessionStatus)},
)


@sessions_blp.page("/<session_id>/files/<name>")
def download(session_id: UUID | None, name: str) -> AnyResponse:
    """Send the session's statement or evidence pack, as the API does."""
    if name == "statement.json":
        return rendering.attached(read_statement(session_id))
    if name != "evidence.zip":
        raise NotFound("A session has no such file.")
    page = url_for(".show", session_id=session_id)
    return rendering.taken(lambda: rendering.attached(read_evidence(session_id)), page)


@sessions_blp.page("/<session_id>")
def show(session_id: UUID | None) -> Response:
    """Show one session and its way, oldest record first."""
    typed = forms.query()
    args = typed.load_filters(PageArgs)
    with transaction() as session:
        one = sessions.find(session, caller(), session_id)
        found = page_of(
            args,
            lambda after, limit: activity.way(session, caller(), one.id, after, limit),
            lambda record: {"record": record},
        )
        shown = sessions.represent(one)
        did = activity.of(session, caller(), "ses", [shown])
        of_session = {"session_id": one.id}
        few = session.scalars(feeds.newest(Finding, caller(), of_session, None, _MOST_FINDINGS))
        told = [findings.represent(each) for each in few]
        names = rendering.names_in(session, shown, *told)
        sent = _sent(session, one.id)
        seal = statements.find(session, one.tenant_id, one.id)
        held = holds.standing_on(session, caller(), _MOST_HOLDS, one.id, one.agent_id)
    found["data"] = _way([each["record"] for each in found["data"]])
    return rendering.page(
        "sessions/one",
        typed=typed,
        session=shown,
        seal=seal,
        sealed_at=one.sealed_at,
        held=held,
        blank=forms.blank(),
        found=found,
        findings=told,
        sent=None if isinstance(sent, Invalid) else sent,
        too_many_told=isinstance(sent, Invalid),
        did=did,
        names=names,
        does=("sessions show {session_id}", "GET /v1/sessions/{session_id}"),
    )


def _sent(session: Session, session_id: UUID) -> Counter[str] | Invalid | None:
    """Return how many deliveries of a session's events have which status, of the newest.

    None for a caller who may not see deliveries; what is wrong where too many findings have any.
    """
    if caller().pin is not None:
        return None
    wanted = Filters(session_id=session_id)
    try:
        page = delivery_list.page(
            session, caller().tenant_id, wanted, before=None, limit=_MOST_DELIVERIES
        )
    except Invalid as too_many:
        return too_many
    return Counter(each.status for each in page)


def _way(found: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the rows of a waterfall: each record, with its first steps below it.

    Idle time between records has no length; `idle` says how much of it was before a record.
    """
    trees = {each: as_tree(read["steps"]) for each, read in _bundles(found).items()}
    spans = []
    for record in found:
        of_steps = [span_of(step) for _, step in trees.get(record.id, ())]
        at = unix_nanoseconds(rfc3339(record.occurred_at))
        spans.append(
            (min(start for start, _ in of_steps), max(end for _, end in of_steps))
            if of_steps
            else (at, at)
        )
    axis = Axis(spans)
    rows = []
    left, ended = _MOST_STEPS, None
    for record, span in zip(found, spans, strict=True):
        idle = 0 if ended is None else span[0] - ended
        tree = trees.get(record.id, [])
        shown = tree[: min(left, _MOST_STEPS_OF_ONE)]
        left -= len(shown)
        begin, length = axis.place(span)
        rows.append(
            {
                "id": ids.text("rec", record.id),
                "name": record.title,
                "kind": record.kind,
                "occurred_at": record.occurred_at,
                "status": "error" if (0, "error") in {(d, s["status"]) for d, s in tree} else "ok",
                "depth": 0,
                "begin": begin,
                "length": length,
                "took": duration(span) if tree else "",
                "idle": duration((0, idle)) if idle >= _IDLE else None,
                "steps": [row_of(depth + 1, step, axis) for depth, step in shown],
                "more_steps": len(tree) - len(shown),
                "is_read": record.id in trees,
            }
        )
        ended = max(span[1], ended or span[1])
    return rows


@reads_objects
def _bundles(found: Iterable[Record]) -> dict[UUID, Bundle]:
    """Return the bundles of the first records that are not too large together to be read."""
    sizes = accumulate(record.bundle_size for record in found)
    wanted = [record.id for record, size in zip(found, sizes, strict=True) if size <= _MOST_BYTES]
    with large_work.room_for(_MOST_BYTES, caller().tenant_id), transaction() as session:
        keys = services().settings.master_keys
        raw = bundles.read_many(session, keys, caller().tenant_id, wanted).contents
        if services().settings.audit_reads:
            record_reads.note(session, caller(), list(raw))
        return {each: bundle.read(text) for each, text in raw.items()}


blp = Pages("agents", "/agents", whole_tenant=False)

lists.serve(
    blp,
    "agents",
    list_agents,
    files=True,
    named=lambda _: (),
    beside=lambda session, _, found: {"did": activity.of(session, caller(), "agt", found["data"])},
)

_NEWEST, _MOST_KEYS = 20, 50


@blp.page("/<agent_id>", endpoint="show")
def show_agent(agent_id: UUID | None) -> Response:
    """Show one agent, its newest sessions and records."""
    with transaction() as session:
        found = agents.find(session, caller(), agent_id)
        agent, of_agent = agents.represent(found), {"agent_id": found.id}
        latest = [
            listed(each) for each in sessions.rows(session, caller(), of_agent, None, _NEWEST)
        ]
        rows = session.scalars(feeds.newest(Record, caller(), of_agent, None, _NEWEST)).all()
        newest = records.represent(session, rows)
        did = activity.of(session, caller(), "agt", [agent])
        did |= activity.of(session, caller(), "ses", latest)
        days = hours.span(database_now(session), None, None, Step.DAY, zone.chosen())
        by_day = activity.by_day(session, caller(), found.id, days.starts, days.until)
        pinned = [
            keys.represent(each)
            for each in keys.current(session, caller(), _MOST_KEYS, pin_agent_id=found.id)
        ]
        former = agents.former_names(session, found.tenant_id, found.id)
        names = rendering.names_in(session, *latest, *newest)
        held = holds.standing_on(session, caller(), _NEWEST, found.id)
    return rendering.page(
        "agents/one",
        agent=agent,
        held=held,
        blank=forms.blank(),
        former=former,
        by_day=by_day,
        pinned=pinned,
        did=did,
        latest=latest,
        newest=newest,
        names=names,
        does=("agents show {agent_id}", "GET /v1/agents/{agent_id}"),
    )


traces_blp = Pages("traces", "/traces", whole_tenant=False)

# A trace of an agent that ran for days may have become thousands of records.
_MOST_RECORDS = 20


lists.serve(
    traces_blp,
    "traces",
    list_traces,
    named=lambda _: (),
    beside=lambda session, *_: {"counts": traces.counts(session, caller())},
    shown={
        "most_records": _MOST_RECORDS,
        "statuses": [each.value for each in TraceStatus],
    },
)
