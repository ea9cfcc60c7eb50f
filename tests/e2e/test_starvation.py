"""Slow callers and callers of much: others are answered meanwhile."""

import json
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, text

from tests.e2e.harness.stack import Caller
from tests.e2e.harness.web import (
    JSON,
    SETTINGS,
    THREADS,
    TOKEN,
    Web,
    everything,
    large_record,
    one_answer,
    request,
)
from tests.support.callers.api import FreshTenant
from tests.support.faults import LONG_ENOUGH, until

pytestmark = pytest.mark.stacks
MANY = 64
MIB = 1024 * 1024


@contextmanager
def held_open(
    web: Web, sent: bytes, count: int, window: int | None = None
) -> Iterator[list[socket.socket]]:
    """Keep connections open that have sent this and do nothing more."""
    with ExitStack() as stack:
        yield [stack.enter_context(web.connection(sent, window=window)) for _ in range(count)]


def others_are_answered(web: Web, other: Caller) -> None:
    """Require that another caller is answered beside the many."""
    assert web.get("/healthz").status_code == 200
    assert web.get("/readyz").json()["status"] == "ready"
    for _ in range(3 * THREADS):
        other.get(SETTINGS)
    other.post("/v1/agents", {"name": "still at work"})


def refusals(web: Web, reason: str) -> float:
    """Return how often the web process refused for a reason."""
    families = text_string_to_metric_families(
        web.get("/metrics", Authorization=f"Bearer {TOKEN}").text
    )
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "record_service_web_refused_total" and sample.labels["reason"] == reason
    )


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("Content-Length: 2000", id="small"),
        pytest.param(f"Content-Length: {MIB}", id="large"),
        pytest.param("Transfer-Encoding: chunked", id="chunked"),
    ],
)
def test_senders_that_never_end_delay_no_other_caller(
    patient: Web, tenant: FreshTenant, other_tenant: FreshTenant, head: str
) -> None:
    begun = request("POST", "/v1/agents", JSON, head, key=tenant.root_key)
    with held_open(patient, begun + b'4\r\n{"na', MANY):
        others_are_answered(patient, patient.caller(other_tenant.root_key))


def test_readers_that_read_nothing_delay_no_other_caller(
    patient: Web, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    loud = patient.caller(tenant.root_key)
    path = large_record(loud, steps=3_000)
    for export in ("prov.json", "otlp-traces.json", "bundle"):
        asked = request("GET", f"{path}/{export}", key=tenant.root_key)
        with held_open(patient, asked, MANY, window=4_096):
            others_are_answered(patient, patient.caller(other_tenant.root_key))


def test_large_bodies_of_one_tenant_leave_memory_for_others(
    patient: Web, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    begun = request("POST", "/v1/records", JSON, f"Content-Length: {3 * MIB}", key=tenant.root_key)
    with held_open(patient, begun, 2) as connections:
        # Whichever came second is refused, with no byte of its body read.
        answered: list[bytes] = []

        def one_is_refused() -> bool:
            for connection in connections:
                connection.settimeout(0.05)
                try:
                    answered.append(connection.recv(65_536))
                except TimeoutError:
                    continue
            return bool(answered)

        until(one_is_refused)
        assert b" 503 " in answered[0]
        assert b"/problems/busy" in answered[0]
        assert b"retry-after: " in answered[0]
        large_record(patient.caller(other_tenant.root_key))


def shared_bundle(caller: Caller, path: str) -> str:
    """Make a share link of a record; return the path of the bundle that it opens."""
    token = caller.post(f"{path}/share-links", {})["url"].rpartition("/")[2]
    return f"{path}/bundle?share_token={token}"


def is_sent(stack: ExitStack, web: Web, asked: bytes) -> bool:
    """Ask on a connection that reads only how the answer begins; say whether it is a good one."""
    connection = stack.enter_context(web.connection(asked, window=4_096))
    return connection.recv(12) == b"HTTP/1.1 200"


def test_large_answers_of_one_reader_leave_memory_for_others(
    patient: Web, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    loud, other = patient.caller(tenant.root_key), patient.caller(other_tenant.root_key)
    path, others_path = large_record(loud, steps=3_000), large_record(other, steps=1_500)
    shared = shared_bundle(loud, path)
    with ExitStack() as stack:
        # Answers of the test before may still be on their way, and count.
        until(lambda: is_sent(stack, patient, request("GET", shared)))
        refused = patient.get(shared)
        assert refused.status_code == 503
        assert refused.json()["type"].endswith("/problems/busy")
        assert refused.headers["Retry-After"]
        until(lambda: loud.ask("GET", f"{path}/bundle").status_code == 200)
        until(lambda: other.ask("GET", f"{others_path}/bundle").status_code == 200)
    until(lambda: patient.get(shared).status_code == 200)


def test_large_answers_by_many_links_of_one_tenant_leave_memory_for_others(
    patient: Web, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    loud, other = patient.caller(tenant.root_key), patient.caller(other_tenant.root_key)
    path, others_path = large_record(loud, steps=3_000), large_record(other, steps=1_500)
    links = [request("GET", shared_bundle(loud, path)) for _ in range(5)]
    with ExitStack() as stack:
        until(lambda: is_sent(stack, patient, links[0]))
        others_sent = [is_sent(stack, patient, link) for link in links[1:]]
        assert not all(others_sent)
        until(lambda: other.ask("GET", f"{others_path}/bundle").status_code == 200)


def test_a_slow_body_is_answered_408_and_its_connection_is_to_close(
    strict: Web, tenant: FreshTenant
) -> None:
    before = refusals(strict, "slow_body")
    for head in ("Content-Length: 2000", f"Content-Length: {MIB}", "Transfer-Encoding: chunked"):
        begun = request("POST", "/v1/agents", JSON, head, key=tenant.root_key)
        with strict.connection(begun + b'4\r\n{"na') as connection:
            # Not until its end: one connection in ten thousand stays open, where granian still
            # holds its receive() at the moment of the answer.
            answered = one_answer(connection)
        assert answered.startswith(b"HTTP/1.1 408 "), head
        assert b"connection: close" in answered
        assert b"content-type: application/problem+json" in answered
        assert b"/problems/request-timeout" in answered
    assert refusals(strict, "slow_body") == before + 3


def test_a_reader_that_reads_nothing_loses_its_connection(strict: Web, tenant: FreshTenant) -> None:
    caller = strict.caller(tenant.root_key)
    # More than the kernel takes for a reader, 4 MiB.
    path = large_record(caller, steps=2_500)
    before = refusals(strict, "slow_reader")
    asked = request("GET", f"{path}/bundle", key=tenant.root_key)
    with strict.connection(asked, window=4_096) as connection:
        until(lambda: refusals(strict, "slow_reader") > before)
        size = len(everything(connection))
    assert size < len(caller.ask("GET", f"{path}/bundle").content)


def test_a_sender_that_waits_for_100_continue_is_refused_before_it_sends(
    patient: Web, tenant: FreshTenant
) -> None:
    heads = (JSON, "Content-Length: 14", "Expect: 100-continue")
    with patient.connection(request("POST", "/v1/agents", *heads)) as connection:
        assert everything(connection).startswith(b"HTTP/1.1 401 ")
    with patient.connection(
        request("POST", "/v1/agents", *heads, "Connection: close", key=tenant.root_key)
    ) as connection:
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b'{"name": "a"} ')
        assert everything(connection).startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_a_body_of_any_size_is_read_whole_or_refused_for_its_size(
    patient: Web, tenant: FreshTenant, declared: bool
) -> None:
    caller = patient.caller(tenant.root_key)
    small = {"name": "a", "metadata": {}}
    for size in (100, 70_000, MIB, MIB + 1):
        raw = json.dumps(small).encode().ljust(size)
        data = raw if declared else (raw[at : at + 50_000] for at in range(0, size, 50_000))
        answer = caller.ask(
            "POST", "/v1/agents", data=data, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == (201 if size <= MIB else 413), (size, answer.text)


def test_a_request_counts_once_however_late_its_body_is(patient: Web, tenant: FreshTenant) -> None:
    caller = patient.caller(tenant.root_key)
    left = [
        int(
            caller.ask(
                "POST",
                "/v1/agents",
                data=b'{"name": "a"}'.ljust(size),
                headers={"Content-Type": "application/json"},
            ).headers["RateLimit-Remaining"]
        )
        for size in (100, 70_000, 100)
    ]
    assert left in ([left[0], left[0] - 1, left[0] - 2], sorted(left))


def is_open(connection: socket.socket) -> bool:
    """Say whether the other side has not closed a connection on which nothing was asked."""
    connection.settimeout(0)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/tenant/settings HT"], ids=["silent", "half a head"]
)
def test_connections_of_one_address_that_ask_nothing_leave_places_for_others(
    patient: Web, tenant: FreshTenant, sent: bytes
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    try:
        # More than a process takes.
        with held_open(patient, sent, 1_100) as connections:
            others_are_answered(patient, patient.caller(tenant.root_key))
            # Before the server's own time for a head is over.
            until(lambda: sum(map(is_open, connections)) <= 256 + 1, 5.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_probes_are_answered_while_the_database_stalls_and_after_it(
    patient: Web, admin_engine: Engine
) -> None:
    def ready() -> int:
        return patient.get("/readyz").status_code

    with admin_engine.begin() as owner, ThreadPoolExecutor(10) as probes:
        # What `/readyz` reads: its one statement waits until this transaction ends.
        owner.execute(text("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE"))
        answers = [each.result(LONG_ENOUGH) for each in [probes.submit(ready) for _ in range(10)]]
        assert answers == [503] * 10
        late = patient.get("/readyz")
        assert late.json()["parts"] == {"database": "unknown: not known within 2 s"}
        assert late.headers["Retry-After"] == "2"
        assert patient.get("/healthz").json() == {"status": "ok"}
    until(lambda: ready() == 200)


def test_requests_whose_clients_have_left_are_never_run(
    patient: Web, tenant: FreshTenant, other_tenant: FreshTenant, admin_engine: Engine
) -> None:
    caller, other = patient.caller(tenant.root_key), patient.caller(other_tenant.root_key)
    # Until its key was looked up once, a caller takes its turns with all of its address.
    for each in (caller, other):
        each.get(SETTINGS)
    posted = request("POST", "/v1/agents", JSON, "Content-Length: 15", key=tenant.root_key)
    with admin_engine.begin() as owner:
        # Creating an agent waits until this transaction ends, in each of the caller's threads.
        owner.execute(text("LOCK TABLE agents IN ACCESS EXCLUSIVE MODE"))
        with held_open(patient, posted + b'{"name":"gone"}', MANY):
            other.get(SETTINGS)
        # The threads' own requests go on, and nobody else's: this one is behind all that left.
        other.get(SETTINGS)
    caller.post("/v1/agents", {"name": "stays"})
    agents = caller.get("/v1/agents?limit=100")["data"]
    assert len([each for each in agents if each["name"] == "gone"]) <= THREADS
