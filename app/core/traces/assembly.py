"""Staged spans become records: exactly one for each local root, whatever is killed when.

The record, its findings, the end of its staged spans and the note of what was assembled commit
together. Traces are claimed by their row's lock, so workers share the work and none waits.
"""

import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from threading import Lock
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids, metrics
from app.core import findings
from app.core.callers import Caller, Role
from app.core.records.intake import Intake
from app.core.records.signing import NewRecord, Signed
from app.core.traces import homes
from app.core.traces.homes import Claimed, Plan
from app.database import Database, RawTransaction, Tx, cursor
from app.errors import NotFound, Unavailable
from app.evidence.spans import export, mapping, runs, verdicts
from app.evidence.spans.runs import Before, Staged
from app.lib.canonical_json import JSON
from app.lib.metric_registry import Tally
from app.settings import Settings

# A batch is one transaction, which takes half a second at most.
MOST_TRACES = 100
MOST_CLAIMED = 4 * 1024 * 1024
# Of one trace; the rest of it follows as a supplement.
MOST_BYTES = 8 * 1024 * 1024
MOST_SPANS = 20_000
# After the last span of a trace whose root never comes; `stage_spans` has the other waits.
PATIENCE = timedelta(seconds=60)
LONGEST_BACKOFF = timedelta(hours=1)
EXPIRES_AFTER = timedelta(hours=24)

_NOTHING_OF_AGENTS = "It has no span of an agent, a tool or a model."

_log = structlog.get_logger(__name__)

# It reads what is staged, and no tenant.
_DUE = """
SELECT DISTINCT tenant_id FROM traces WHERE status = 'staged' AND due_at <= clock_timestamp()
"""
IS_DUE = f"SELECT NULL::uuid WHERE EXISTS ({_DUE})"
"""A query for a row if traces are to be assembled, in a session that sees all tenants."""


def due_tenants(session: Session) -> list[UUID]:
    """Return the tenants with traces to assemble, in a session that sees all tenants."""
    return [row[0] for row in cursor(session).execute(_DUE).fetchall()]


# A plan made while a table was small must not read all of it when it has grown.
_BY_INDEX = """
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true)
"""
_CLAIM = """
SELECT pin, trace_id, pin_agent_id, pin_principal, staged_bytes, assembled, record_ids,
       is_incomplete, at, clock_timestamp()
  FROM traces
 WHERE tenant_id = %s AND status = 'staged' AND due_at <= clock_timestamp()
   AND (%s::uuid IS NULL OR pin = %s AND trace_id = %s)
 ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
"""
# The roots first, for they say whose record it is.
_SPANS = """
SELECT pin, trace_id, body, resource FROM (
    SELECT s.pin, s.trace_id, s.body, s.resource, row_number() OVER in_order AS place,
           sum(length(s.body) + length(s.resource)) OVER in_order
               - length(s.body) - length(s.resource) AS before
      FROM unnest(%s::uuid[], %b::bytea[]) AS wanted (pin, trace_id)
      JOIN staged_spans AS s
        ON s.tenant_id = %s AND s.pin = wanted.pin AND s.trace_id = wanted.trace_id
    WINDOW in_order AS (
        PARTITION BY s.pin, s.trace_id ORDER BY s.is_root DESC, s.started, s.span_id)
    ) AS spans
 WHERE before < %s AND place <= %s
"""
_UNSTAGE = """
DELETE FROM staged_spans AS s
 USING unnest(%s::uuid[], %b::bytea[], %b::bytea[]) AS gone (pin, trace_id, span_id)
 WHERE s.tenant_id = %s AND s.pin = gone.pin AND s.trace_id = gone.trace_id
   AND s.span_id = gone.span_id
"""
_SETTLE = """
UPDATE traces
   SET status = %s, reason = %s, roots = 0,
       staged_bytes = CASE WHEN %s THEN greatest(staged_bytes - %s, 0) ELSE 0 END,
       assembled = assembled || %b::bytea[], record_ids = record_ids || %s::uuid[],
       is_incomplete = is_incomplete OR %s, attempts = 0, due_at = %s
 WHERE tenant_id = %s AND pin = %s AND trace_id = %s
"""
_POSTPONE = """
UPDATE traces
   SET reason = %s, attempts = attempts + 1,
       due_at = clock_timestamp() + least(interval '5 s' * 2 ^ attempts, %s),
       status = CASE WHEN at + %s < clock_timestamp() THEN 'rejected' ELSE status END
 WHERE tenant_id = %s AND pin = %s AND trace_id = %s AND status = 'staged'
RETURNING status
"""
_FORGET = "DELETE FROM staged_spans WHERE tenant_id = %s AND pin = %s AND trace_id = %s"


class Assembler:
    """Assembles the staged spans of tenants into records."""

    def __init__(self, database: Database, settings: Settings, tally: Tally) -> None:
        self._database = database
        self._tally = tally
        self._records = Intake(database, settings)
        # Mapping and signing are Python's work: a second thread would only slow down the first.
        self._at_work = Lock()

    def run(self, until: float) -> bool:
        """Assemble due traces, of each tenant in turn, until `until` (monotonic).

        Says whether more are due. One thread of a process at a time: another returns at once.
        """
        if not self._at_work.acquire(blocking=False):
            return False
        try:
            claimed = 1
            # Nothing claimed: what is due is another worker's.
            while claimed:
                with self._database.across_tenants() as session:
                    due = due_tenants(session)
                claimed = 0
                for tenant_id in due:
                    if time.monotonic() > until:
                        return True
                    claimed += self._batch(tenant_id)
        finally:
            self._at_work.release()
        return False

    def _batch(self, tenant_id: UUID) -> int:
        """Assemble some traces of a tenant in one transaction; return how many were claimed."""
        claimed: list[Claimed] = []
        try:
            try:
                self._transact(tenant_id, claimed)
            except Unavailable:
                # Two workers opened the same sessions, or an agent was renamed meanwhile.
                self._transact(tenant_id, claimed)
        except Exception as error:  # one trace is at fault: each is tried alone
            if isinstance(error, Unavailable) and not claimed:
                raise
            _log.warning("traces_not_assembled", traces=len(claimed), error=_words(error))
            for each in claimed:
                self._alone(tenant_id, each)
        return len(claimed)

    def _alone(self, tenant_id: UUID, trace: Claimed) -> None:
        """Assemble one trace, or put it off: its fault must not stop the others.

        Raises `Unavailable` where the database is away: then it cannot be put off either.
        """
        try:
            self._transact(tenant_id, [], trace)
        except Exception as error:  # noqa: BLE001  # whatever it raises is written to its row
            at = traceback.extract_tb(error.__traceback__)[-1]
            _log.error(
                "trace_not_assembled",
                trace=trace.trace_id.hex(),
                error=_words(error),
                at=f"{at.filename}:{at.lineno}",
            )
            self._postpone(tenant_id, trace, _words(error))

    def _transact(
        self, tenant_id: UUID, claimed: list[Claimed], only: Claimed | None = None
    ) -> None:
        """Claim and assemble traces; what was claimed is in `claimed`, whatever is raised."""
        with self._database.raw_transaction(tenant_id) as tx:
            claimed[:] = self._claim(tx, tenant_id, only)
            plans = _plans(tx, tenant_id, claimed) if claimed else []
            self._record(tx, tenant_id, plans)
            _settle(tx, tenant_id, plans)
        self._count(plans)

    def _postpone(self, tenant_id: UUID, trace: Claimed, reason: str) -> None:
        key = (tenant_id, trace.pin, trace.trace_id)
        with self._database.raw_transaction(tenant_id) as tx:
            values = (reason, LONGEST_BACKOFF, EXPIRES_AFTER, *key)
            expired = ("rejected",) in cursor(tx).execute(_POSTPONE, values).fetchall()
            if expired:
                cursor(tx).execute(_FORGET, key)
        self._tally.add(metrics.TRACES, "rejected" if expired else "failed")

    def _claim(self, tx: Tx, tenant_id: UUID, only: Claimed | None) -> list[Claimed]:
        """Lock due traces, or one of them, of 4 MiB together or one larger one."""
        cursor(tx).execute(_BY_INDEX)
        pin, trace_id = (only.pin, only.trace_id) if only else (None, None)
        values = (tenant_id, pin, pin, trace_id, MOST_TRACES)
        claimed: list[Claimed] = []
        size = 0
        for row in cursor(tx).execute(_CLAIM, values).fetchall():
            trace = Claimed(*row)
            size += trace.staged_bytes
            if claimed and size > MOST_CLAIMED:
                break
            claimed.append(trace)
        return claimed

    def _record(self, tx: RawTransaction, tenant_id: UUID, plans: Sequence[Plan]) -> None:
        """Store the records of all plans and their findings."""
        if not any(plan.runs for plan in plans):
            return
        caller = Caller(tenant_id, UUID(int=0), Role.WRITE, None, "assembly")
        homes.find(tx, tenant_id, plans)
        opened = {home[0] for plan in plans for home in plan.homes.values()}
        actors = self._records.signer.actors(tx, tenant_id, opened)
        signed: list[Signed] = []
        found: list[findings.NewFinding] = []
        for plan in plans:
            for place, (run, mapped) in enumerate(plan.runs):
                session_id, _, principal = plan.homes[place]
                # A supplement is its first record's agent's, whatever its spans say.
                agent = actors[session_id].agent
                is_same = agent.get("external_id") == mapped.agent.external_id
                labels = dict(mapped.labels)
                if run.supplement:
                    first = (*plan.trace.record_ids, *plan.record_ids)[0]
                    labels["supplement_of"] = ids.text("rec", first)
                new = NewRecord(
                    session_id=session_id,
                    kind=mapped.kind,
                    title=mapped.title,
                    content=mapped.content,
                    occurred_at=mapped.occurred_at,
                    labels=labels,
                    steps=mapped.steps,
                    approvals=verdicts.approvals(mapped.steps, principal),
                    agent_version=mapped.agent.version if is_same else None,
                )
                (record,) = self._records.signer.sign(caller, [new], tx)
                if isinstance(record, NotFound):
                    raise record
                signed.append(record)
                plan.record_ids.append(record.id)
                found += [
                    findings.NewFinding(session_id, *verdict, record_id=record.id)
                    for verdict in verdicts.of_steps(mapped.steps)
                ]
        self._records.add_all(tx, caller, signed)
        # The ids of a call's events count up to 4,095.
        for start in range(0, len(found), findings.MOST_TOGETHER):
            part = found[start : start + findings.MOST_TOGETHER]
            findings.add(tx, caller, part, source=findings.Source.OTLP)

    def _count(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            for run, _ in plan.runs:
                result = "incomplete" if run.incomplete else "assembled"
                self._tally.add(metrics.TRACES, result)
                self._tally.add(metrics.SPANS_ASSEMBLED, count=len(run.spans))
                waited = (plan.trace.now - plan.trace.at).total_seconds()
                self._tally.observe(metrics.ASSEMBLY_SECONDS, waited)
            self._tally.add(metrics.TRACES, "dropped", count=plan.reason is not None)


def _words(error: Exception) -> str:
    # A driver's message may hold what the spans say.
    return getattr(error, "detail", None) or type(error).__name__


def _plans(tx: Tx, tenant_id: UUID, claimed: Sequence[Claimed]) -> list[Plan]:
    """Read the spans of claimed traces and say what becomes of each trace."""
    wanted = ([each.pin for each in claimed], [each.trace_id for each in claimed])
    spans: defaultdict[tuple[UUID, bytes], list[Staged]] = defaultdict(list)
    resources: dict[bytes, dict[str, JSON]] = {}
    values = (*wanted, tenant_id, MOST_BYTES, MOST_SPANS)
    for pin, trace_id, body, resource in cursor(tx).execute(_SPANS, values).fetchall():
        if resource not in resources:
            resources[resource] = export.read_resource(resource)
        one = Staged(
            export.read_span(body), resources[resource], resource, len(body) + len(resource)
        )
        spans[pin, trace_id].append(one)
    return [_plan(each, spans[each.pin, each.trace_id]) for each in claimed]


def _plan(trace: Claimed, spans: list[Staged]) -> Plan:
    plan = Plan(trace, spans)
    size = sum(each.size for each in spans)
    plan.is_cut = size >= MOST_BYTES or len(spans) >= MOST_SPANS
    patient = trace.at + PATIENCE <= trace.now or plan.is_cut
    known = frozenset(each.hex() for each in trace.assembled)
    before = Before(known, bool(trace.record_ids), trace.is_incomplete)
    ready = runs.assemble(spans, before, patient=patient)
    if ready and not before.recorded and not mapping.is_of_agents(each.span for each in spans):
        plan.reason = _NOTHING_OF_AGENTS
    else:
        plan.runs = [(run, mapping.record_of(run)) for run in ready]
    return plan


def _settle(tx: Tx, tenant_id: UUID, plans: Sequence[Plan]) -> None:
    """Delete the spans that were taken, and note in each trace what became of it."""
    gone = [
        (plan.trace.pin, plan.trace.trace_id, _id(each)) for plan in plans for each in plan.taken
    ]
    if gone:
        cursor(tx).execute(_UNSTAGE, (*map(list, zip(*gone, strict=True)), tenant_id))
    for plan in plans:
        trace, taken = plan.trace, plan.taken
        is_left = plan.is_cut or len(taken) < len(plan.spans)
        rooted = any(each.span.is_local_root and each.span.ended for each in taken)
        incomplete = any(run.incomplete for run, _ in plan.runs)
        if is_left:
            status = "staged"
        elif plan.reason:
            status = "dropped"
        else:
            still = trace.is_incomplete and not rooted
            status = "incomplete" if incomplete or still else "assembled"
        values = (
            status,
            plan.reason,
            is_left,
            sum(each.size for each in taken),
            [_id(each) for each in taken],
            plan.record_ids,
            incomplete,
            trace.now if plan.is_cut else max(trace.now, trace.at + PATIENCE),
            tenant_id,
            trace.pin,
            trace.trace_id,
        )
        cursor(tx).execute(_SETTLE, values)


def _id(staged: Staged) -> bytes:
    return bytes.fromhex(staged.span.span_id)
