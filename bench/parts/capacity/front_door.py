"""Spans of exporters: accepted and assembled a second, the wait for a record, the web's memory.

Runs of twenty spans of some 600 bytes, in requests of 512 spans as SDKs send them. Beside them
stands a thread that reads the same requests and inserts their spans, a statement each.
"""

import http.client
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from sqlalchemy import text

from app.evidence.spans import export
from bench.figures import Bound, Figure, Reach, median, percentile
from bench.lab import Lab
from bench.processes import BenchError, resident_bytes, until
from bench.scale import Scale
from bench.service import Tenant

SPANS_A_RUN = 20
SPANS_A_REQUEST = 512
CONNECTIONS = 8
_HEADERS = {"Content-Type": export.PROTOBUF}
_MIB = 1024 * 1024
_PACED_SPANS = 1_000
_INSERT = "INSERT INTO bare_spans SELECT * FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[])"
_MESSAGES = json.dumps(
    [{"role": "user", "parts": [{"type": "text", "content": "Refund it. " * 20}]}]
)


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure acceptance, then assembly of what was accepted, then both at a pace, then memory."""
    tenant = lab.service.new_tenant()
    lab.service.stop_role("worker")
    bodies = list(_requests(scale.findings * 10 // SPANS_A_REQUEST, SPANS_A_REQUEST))
    bound = _bare(lab, bodies[: len(bodies) // 4])
    began = time.monotonic()
    _send(lab, tenant, bodies)
    accepted = len(bodies) * SPANS_A_REQUEST / (time.monotonic() - began)
    beside = Bound("reading and one bulk INSERT, one thread", bound)
    words = f"spans accepted ({CONNECTIONS} connections)"
    yield Figure(words, accepted, "/s", beside, Reach(at_least=10_000))
    yield _assembled(lab, tenant, bound)
    yield _wait(lab, scale)
    yield _memory(lab, tenant)


def _requests(count: int, spans: int, size: int = 240) -> Iterator[bytes]:
    """Make requests of whole runs, the root last."""
    run: list[bytes] = []
    for _ in range(count):
        made = ExportTraceServiceRequest()
        of_resource = made.resource_spans.add()
        name = of_resource.resource.attributes.add(key="service.name")
        name.value.string_value = "bench"
        scope = of_resource.scope_spans.add()
        for _ in range(spans):
            if not run:
                trace, root = secrets.token_bytes(16), secrets.token_bytes(8)
                run = [trace, *(secrets.token_bytes(8) for _ in range(SPANS_A_RUN - 1)), root][::-1]
            trace, root, this = run[-1], run[0], run.pop(-2)
            if len(run) == 1:
                run = []
            moment = time.time_ns()
            span = scope.spans.add(
                trace_id=trace,
                span_id=this,
                parent_span_id=b"" if this == root else root,
                name="invoke_agent desk" if this == root else "execute_tool refund",
                start_time_unix_nano=moment,
                end_time_unix_nano=moment + 1_000,
            )
            of = {
                "gen_ai.operation.name": "invoke_agent" if this == root else "execute_tool",
                "gen_ai.agent.name": "desk",
                "gen_ai.request.model": "m-4",
                "gen_ai.input.messages": _MESSAGES[:size],
            }
            for key, value in of.items():
                span.attributes.add(key=key).value.string_value = value
        yield made.SerializeToString()


def _send(lab: Lab, tenant: Tenant, bodies: Sequence[bytes]) -> None:
    """Send requests over several connections, again where the service says so."""
    place = urlsplit(lab.service.base_url)
    headers = {**_HEADERS, **tenant.headers}

    def connection(number: int) -> None:
        opened = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        for body in bodies[number::CONNECTIONS]:
            while True:
                opened.request("POST", "/v1/traces", body, headers)
                answer = opened.getresponse()
                said = answer.read()
                if answer.status == 200:
                    break
                if answer.status not in (429, 503):
                    raise BenchError(f"spans are answered {answer.status}: {said!r}")
                time.sleep(0.2)
        opened.close()

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(connection, range(CONNECTIONS)))


def _bare(lab: Lab, bodies: Sequence[bytes]) -> float:
    """Return how many spans a second one thread reads and inserts."""
    with psycopg.connect(lab.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CREATE TABLE bare_spans (trace_id bytea, span_id bytea, body bytea)")
        began = time.monotonic()
        for body in bodies:
            spans = export.read(body, is_json=False).spans
            columns = (
                [bytes.fromhex(each.trace_id) for each in spans],
                [bytes.fromhex(each.span_id) for each in spans],
                [each.body for each in spans],
            )
            connection.execute(_INSERT, columns)
        seconds = time.monotonic() - began
        connection.execute("DROP TABLE bare_spans")
    return len(bodies) * SPANS_A_REQUEST / seconds


def _assembled(lab: Lab, tenant: Tenant, bound: float) -> Figure:
    """Start the worker on what waits, and return at what rate it is assembled."""
    staged = _staged(lab, tenant)
    lab.service.start_role("worker")
    until(lambda: _staged(lab, tenant) < staged, 60, "the worker assembles")
    began, first = time.monotonic(), _staged(lab, tenant)
    # A run that was cut off by the end of the requests waits for its root.
    until(lambda: _staged(lab, tenant) < SPANS_A_RUN, 300, "all is assembled")
    rate = first / (time.monotonic() - began)
    beside = Bound("reading and one bulk INSERT, one thread", bound)
    return Figure("spans assembled into records", rate, "/s", beside, Reach(at_least=5_000))


def _staged(lab: Lab, tenant: Tenant) -> int:
    query = text("SELECT count(*) FROM staged_spans WHERE tenant_id = :tenant")
    with lab.service.database.transaction(tenant.id) as session:
        return int(session.scalar(query, {"tenant": tenant.id}) or 0)


def _wait(lab: Lab, scale: Scale) -> Figure:
    """Send at a pace, and return how long after its root a record is there."""
    tenant = lab.service.new_tenant()
    requests = list(_requests(int(scale.seconds * 4), _PACED_SPANS // 4))
    for number, body in enumerate(requests):
        began = time.monotonic()
        _send(lab, tenant, [body])
        time.sleep(max(0.0, (0.25 if number else 1.0) - (time.monotonic() - began)))
    until(lambda: _staged(lab, tenant) < SPANS_A_RUN, 60, "all is assembled")
    query = text(
        "SELECT extract(epoch FROM r.created_at - t.at)::float8 FROM traces AS t"
        " JOIN records AS r ON r.tenant_id = t.tenant_id AND r.id = t.record_ids[1]"
        " WHERE t.tenant_id = :tenant"
    )
    with lab.service.database.transaction(tenant.id) as session:
        waits = [float(each) for each in session.scalars(query, {"tenant": tenant.id})]
    words = f"from a root to its record, at {_PACED_SPANS} spans/s, p95"
    note = f"p50 {median(waits):.2f} s; two seconds are its quiet"
    return Figure(words, percentile(waits, 95), " s", reach=Reach(at_most=5.0), note=note)


def _memory(lab: Lab, tenant: Tenant) -> Figure:
    """Send batches of 4 MiB, and return the most that the web's processes hold."""
    web = [lab.service.running["web"].pid]
    most = 0
    body = next(_requests(1, 1_800, size=2_000))
    wanted = 4 * _MIB
    spans = 1_800 * wanted // len(body)
    bodies = list(_requests(6, spans, size=2_000))
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(_send, lab, tenant, bodies)
        while not sending.done():
            most = max(most, resident_bytes(web))
            time.sleep(0.01)
        sending.result()
    note = f"of {len(bodies)} batches of {len(bodies[0]) / _MIB:.1f} MiB"
    words = "memory of a web process meanwhile"
    processes = int(lab.environ.get("WEB_CONCURRENCY", "2"))
    return Figure(words, most / processes / _MIB, " MiB", reach=Reach(at_most=200), note=note)
