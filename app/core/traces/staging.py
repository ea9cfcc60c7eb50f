"""Spans are staged as they come, many requests in one call: each once, however often it is sent.

Nothing is mapped here: only the local root, which is exported last, knows the conversation.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple
from uuid import UUID

from app import ids, metrics
from app.core.callers import Caller, Pin
from app.database import Database, carried, cursor
from app.errors import BAD_KEY, ServiceError, StagingFull, Unauthenticated
from app.evidence.spans.export import Request
from app.evidence.spans.mapping import (
    AGENT_ID,
    AGENT_NAMES,
    PRINCIPAL,
    PRINCIPAL_OF_RESOURCE,
    said,
)
from app.evidence.spans.span import NeverTaken, Span
from app.lib.canonical_json import JSON
from app.lib.group_commit import GroupCommit
from app.lib.metric_registry import Tally

NO_PIN = UUID(int=0)
MOST_A_CALL = 8 * 1024 * 1024
"""The most bytes that go together, unless one request has more; see `Sent.weight`."""

# What a span costs at least, rejected or not.
_WEIGHT = 1024

# A tenant's staged bytes are counted so often by each process, in between it adds what it stages.
_COUNT_SECONDS = 1.0

_STAGE = """
SELECT bad_keys, staged FROM stage_spans(
    %s, %s::uuid[], %s, %s, %s, %s, %s, %b::bytea[], %b::bytea[], %s::boolean[], %s::boolean[],
    %s::bigint[], %b::bytea[], %s::integer[], %b::bytea[], %s::integer[])
"""


class Sent(NamedTuple):
    """A request to stage: who sent it, by which exporter, and what."""

    caller: Caller
    exporter: str
    request: Request

    @property
    def weight(self) -> int:
        """What it costs to stage, in bytes."""
        request = self.request
        size = sum(map(len, request.resources)) + sum(len(each.body) for each in request.spans)
        return max(size, _WEIGHT * (len(request.spans) + len(request.rejected)))


class Staging:
    """Stages requests of a process's threads, together where they come together."""

    def __init__(self, database: Database, tally: Tally, most_bytes: int) -> None:
        """`most_bytes` bounds the staged bytes of a tenant; 0 for none."""
        self._database = database
        self._tally = tally
        self._most_bytes = most_bytes
        self._group = GroupCommit[Sent, None](
            self._run, most=MOST_A_CALL, weigh=lambda sent: sent.weight
        )
        self._lock = Lock()
        self._counted: dict[UUID, tuple[float, int]] = {}

    def stage(self, sent: Sent) -> None:
        """Store a request's spans, and note what of it was rejected; durable when it returns.

        Raises `StagingFull` when the tenant's staged bytes reach their bound, `Unauthenticated`
        when the key is no longer valid, and `Unavailable`.
        """
        _, staged = self._counted.get(sent.caller.tenant_id, (0.0, 0))
        if self._most_bytes and staged >= self._most_bytes:
            self._recount(sent.caller.tenant_id)
        if sent.request.spans or sent.request.rejected:
            self._group.submit(sent)
        self._tally.add(metrics.SPANS_ACCEPTED, count=len(sent.request.spans))
        self._tally.add(metrics.SPANS_REJECTED, count=len(sent.request.rejected))

    def _recount(self, tenant_id: UUID) -> None:
        with self._database.transaction(tenant_id) as session:
            ((staged,),) = cursor(session).execute(_STAGED_BYTES, (tenant_id,)).fetchall()
        self._note(tenant_id, staged)
        if staged >= self._most_bytes:
            self._tally.add(metrics.STAGING_FULL)
            raise StagingFull(
                f"This tenant has {staged} bytes of spans that wait to be assembled; the most is "
                f"{self._most_bytes}. Send them again."
            )

    def _note(self, tenant_id: UUID, staged: int) -> None:
        with self._lock:
            self._counted[tenant_id] = time.monotonic(), staged

    def _run(self, sent: Sequence[Sent]) -> Sequence[ServiceError | None]:
        """Stage requests, those of one tenant and pin in one call each."""
        results: list[ServiceError | None] = [None] * len(sent)
        scopes: dict[tuple[UUID, Pin | None], list[int]] = {}
        for place, each in enumerate(sent):
            scopes.setdefault((each.caller.tenant_id, each.caller.pin), []).append(place)
        for (tenant_id, pin), places in scopes.items():
            try:
                bad = self._call(tenant_id, pin, [sent[place] for place in places])
            except ServiceError as error:
                # Each tenant's call is a transaction: what came before and after it stands.
                for place in places:
                    results[place] = error
                continue
            for place in places:
                if sent[place].caller.key_id in bad:
                    results[place] = Unauthenticated(BAD_KEY)
        return results

    def _call(self, tenant_id: UUID, pin: Pin | None, sent: Sequence[Sent]) -> list[UUID]:
        """Stage requests of one tenant and pin; return the keys that are not valid."""
        keys = sorted({each.caller.key_id for each in sent})
        resources: list[bytes] = []
        spans: list[tuple[Any, ...]] = []
        size = 0
        for each in sent:
            key = keys.index(each.caller.key_id) + 1
            before = len(resources) + 1
            resources += each.request.resources
            for span in each.request.spans:
                size += len(span.body)
                spans.append(
                    (
                        bytes.fromhex(span.trace_id),
                        bytes.fromhex(span.span_id),
                        span.is_root,
                        span.ended,
                        span.started,
                        span.body,
                        before + span.resource,
                        key,
                    )
                )
        counted_at, staged = self._counted.get(tenant_id, (0.0, 0))
        count = time.monotonic() > counted_at + _COUNT_SECONDS
        columns = [list(column) for column in zip(*spans, strict=True)] or [[] for _ in range(8)]
        *of_spans, resource_places, key_places = columns
        who = (tenant_id, keys, scope_of(pin), pin and pin.agent_id, pin and pin.principal)
        traces = json.dumps([*_traces(sent).values()], default=lambda value: value.hex)
        with self._database.statement() as tx:
            carried(tx, size)
            values = (*who, count, traces, *of_spans, resource_places, resources, key_places)
            ((bad, now_staged),) = cursor(tx).execute(_STAGE, values).fetchall()
        if now_staged is not None:
            self._note(tenant_id, now_staged)
        else:
            with self._lock:
                self._counted[tenant_id] = counted_at, staged + size
        return bad or []


_STAGED_BYTES = """
SELECT coalesce(sum(staged_bytes), 0)::bigint FROM traces WHERE tenant_id = %s AND status = 'staged'
"""


def _traces(sent: Sequence[Sent]) -> dict[tuple[str, UUID], dict[str, Any]]:
    """Return the traces of requests by their ids and keys: what `stage_spans` notes of each.

    One whose key is not valid must not take along a trace that another key's spans are of too.
    """
    found: dict[tuple[str, UUID], dict[str, Any]] = {}
    for each in sent:
        request, key = each.request, each.caller.key_id
        about = {"exporter": each.exporter, "key_used": key}
        for span in request.spans:
            if (span.trace_id, key) not in found:
                service = request.services[span.resource].replace("\0", "\ufffd")[:200]
                made = _trace(span.trace_id, service=service or None, **about)
                found[span.trace_id, key] = made
        counts = Counter(rejected.trace_id for rejected in request.rejected)
        reasons = {rejected.trace_id: rejected.reason for rejected in request.rejected}
        for trace_id, count in counts.items():
            known = found.setdefault((trace_id, key), _trace(trace_id, service=None, **about))
            known["rejected"] += count
            known["reason"] = reasons[trace_id]
    return found


def _trace(trace_id: str, **members: Any) -> dict[str, Any]:
    return {"trace_id": trace_id, "id": ids.new(), "rejected": 0, "reason": None, **members}


def scope_of(pin: Pin | None) -> UUID:
    """Return what keeps traces under a pin apart from others with the same id."""
    if pin is None:
        return NO_PIN
    return UUID(bytes=sha256(f"{pin.agent_id.hex}:{pin.principal}".encode()).digest()[:16])


class PinCheck:
    """Rejects spans that name an agent or a principal other than the pin's."""

    def __init__(self, pin: Pin, names: frozenset[str]) -> None:
        """`names` are the pin's agent's: its id, its external id and its name."""
        self._pin = pin
        self._names = names

    def __call__(self, span: Span, resource: dict[str, JSON]) -> None:
        """Raise `NeverTaken` for such a span."""
        for name in (AGENT_ID, *AGENT_NAMES):
            if (told := said(span.attributes, name)) and told not in self._names:
                raise NeverTaken(f"{name} names another agent than the one this key is pinned to")
        told_of = [(name, span.attributes) for name in PRINCIPAL]
        for name, of in (*told_of, (PRINCIPAL_OF_RESOURCE, resource)):
            if (told := said(of, name)) and told != self._pin.principal:
                raise NeverTaken(f"{name} names another principal than this key is pinned to")


_AGENT = "SELECT name, external_id FROM agents WHERE tenant_id = %s AND id = %s"


def pin_check(database: Database, caller: Caller) -> PinCheck | None:
    """Return the check of a pinned caller's spans; None for one without a pin."""
    if caller.pin is None:
        return None
    agent_id = caller.pin.agent_id
    with database.transaction(caller.tenant_id) as session:
        rows = cursor(session).execute(_AGENT, (caller.tenant_id, agent_id)).fetchall()
    names = {ids.text("agt", agent_id), *(name for row in rows for name in row if name)}
    return PinCheck(caller.pin, frozenset(names))
