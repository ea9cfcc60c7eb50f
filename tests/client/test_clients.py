"""`Client` and `AsyncClient` against the service: the same verbs, with and without `await`."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from record_service import (
    AsyncClient,
    Client,
    Invalid,
    NotFound,
    RecordsError,
    Unavailable,
    Unreachable,
)
from record_service.values import Unfit

from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import NOBODY, make_agent
from tests.support.servers.receivers import Receiver, http_answer

KEY = "svc_" + "k" * 46
WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def caller(base_url: str, tenant: FreshTenant) -> Client:
    return Client(base_url, tenant.root_key)


@asynccontextmanager
async def waiting(base_url: str, tenant: FreshTenant) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(base_url, tenant.root_key) as client:
        yield client


def test_both_do_the_same_and_answer_alike(
    base_url: str, tenant: FreshTenant, caller: Client
) -> None:
    agent = caller.agents.create(name="desk")

    async def work() -> tuple[Any, ...]:
        async with waiting(base_url, tenant) as client:
            session = await client.sessions.create(agent_id=agent["id"], principal="p")
            record = await client.records.create(
                session_id=session["id"], kind="refund", title="t", content={"a": 1}
            )
            bundle = await client.bundles.bundle(record["id"])
            listed = [row async for row in client.records.list(session_id=session["id"])]
            ended = await client.sessions.complete(session["id"], outcome="succeeded")
            return session, record, bundle, listed, ended

    session, record, bundle, listed, ended = asyncio.run(work())

    assert [row["id"] for row in listed] == [record["id"]]
    assert caller.bundles.bundle(record["id"]) == bundle
    assert caller.sessions.read(session["id"]) == ended
    assert list(caller.records.list(session_id=session["id"])) == listed
    assert caller.keys.self()["role"] == "admin"


def test_every_row_of_a_list_is_read_page_by_page(
    base_url: str, tenant: FreshTenant, caller: Client, api: ApiOf
) -> None:
    made = [make_agent(api())["id"] for _ in range(5)][::-1]

    async def read() -> list[str]:
        async with waiting(base_url, tenant) as client:
            return [row["id"] async for row in client.agents.list(page_size=2)]

    assert [row["id"] for row in caller.agents.list(page_size=2)] == made
    assert asyncio.run(read()) == made


def test_what_is_created_with_a_key_of_one_s_own_is_there_once(
    base_url: str, tenant: FreshTenant, caller: Client
) -> None:
    async def create() -> str:
        async with waiting(base_url, tenant) as client:
            return (await client.agents.create(name="desk", idempotency_key="one"))["id"]

    first = caller.agents.create(name="desk", idempotency_key="one")["id"]
    assert asyncio.run(create()) == first
    assert caller.agents.create(name="desk")["id"] != first
    with pytest.raises(Invalid) as raised:
        caller.agents.create(name="other", idempotency_key="one")
    assert raised.value.slug == "idempotency-key-reused"


def test_what_goes_into_the_query_of_a_post_is_not_in_its_body(
    caller: Client, session: dict[str, Any]
) -> None:
    good: Any = {"session_id": session["id"], "kind": "k", "title": "t", "content": 1}
    sent: list[Any] = [good, good | {"title": 1}]
    with pytest.raises(Invalid) as raised:
        caller.records.create_batch(records=sent, atomic=True)
    assert raised.value.errors[0]["pointer"] == "/records/1/title"
    assert list(caller.records.list(session_id=session["id"])) == []
    added = caller.records.create_batch(records=sent)["data"]
    assert ["problem" in each for each in added] == [False, True]


def test_a_refusal_says_what_by_which_and_where(base_url: str, tenant: FreshTenant) -> None:
    async def refused() -> NotFound:
        async with waiting(base_url, tenant) as client:
            with pytest.raises(NotFound) as raised:
                await client.records.read(f"rec_{NOBODY}")
            return raised.value

    error = asyncio.run(refused())
    assert (error.status, error.slug, error.errors) == (404, "not-found", [])
    assert error.request_id == error.body["request_id"]
    with Client(base_url, tenant.root_key) as client, pytest.raises(Invalid) as raised:
        client.get("/v1/findings", severity="urgent")
    assert raised.value.errors == [
        {"pointer": "/severity", "detail": raised.value.errors[0]["detail"]}
    ]


BUSY = http_answer(503, b"{}", {"Retry-After": "1"})


def test_a_call_ends_with_its_timeout_whatever_the_patience() -> None:
    slept: list[float] = []
    with Receiver(BUSY) as service:
        client = Client(service.url(""), KEY, patience=600, sleep=slept.append)
        with pytest.raises(Unavailable):
            client.records.read("rec_1", timeout=0.5)
        assert (len(service.requests), slept) == (1, [])
    with Receiver(lambda _: None) as silent, pytest.raises(Unreachable):
        Client(silent.url(""), KEY, patience=600).get("/v1/records", timeout=0.2)


def test_an_async_call_waits_without_stopping_the_loop_and_ends_when_cancelled() -> None:
    naps: list[float] = []
    third = asyncio.Event()

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            third.set()
        await asyncio.sleep(0)

    async def work(url: str) -> None:
        async with AsyncClient(url, KEY, patience=600, sleep=nap) as client:
            asked = asyncio.create_task(client.records.read("rec_1"))
            await third.wait()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked

    with Receiver(BUSY) as service:
        asyncio.run(work(service.url("")))
        assert {each.headers["authorization"] for each in service.requests} == {f"Bearer {KEY}"}
    assert naps[:3] == [1.0, 1.0, 1.0]


def test_what_is_still_built_is_waited_for_in_both() -> None:
    left = [http_answer(202, b"{}", {"Retry-After": "2"})] * 2 + [http_answer(200, b"PK")] * 2
    order = [left[0], left[2], left[1], left[3]]

    async def read(url: str) -> bytes:
        async with AsyncClient(url, KEY, sleep=lambda _: asyncio.sleep(0)) as client:
            return await client.evidence_packs.evidence("rec_1")

    with Receiver(lambda _: order.pop(0)) as service:
        slept: list[float] = []
        client = Client(service.url(""), KEY, sleep=slept.append)
        assert client.evidence_packs.evidence("rec_1") == b"PK"
        assert slept == [2.0]
        assert asyncio.run(read(service.url(""))) == b"PK"


def test_a_forked_child_has_connections_of_its_own(caller: Client) -> None:
    caller.keys.self()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, caller.keys.self()["id"].encode())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.read(reading, 100).decode() == caller.keys.self()["id"]
    os.close(reading)
    os.close(writing)


def test_its_requests_are_not_among_what_the_agent_logs(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(url: str) -> None:
        async with AsyncClient(url, KEY) as client:
            await client.get("/v1/x")

    caplog.set_level("DEBUG")
    with Receiver(http_answer(200, b"{}")) as service:
        Client(service.url(""), KEY).get("/v1/x")
        asyncio.run(ask(service.url("")))
        assert len(service.requests) == 2
        assert [each.name for each in caplog.records if each.name.startswith("http")] == []
        httpx2.get(service.url(""), trust_env=False)
    assert "httpx2" in {each.name for each in caplog.records}


@pytest.mark.parametrize("first", [BUSY, None], ids=["busy", "connection broken"])
def test_an_async_call_is_tried_again_as_one_without_await_is(first: bytes | None) -> None:
    left = [first, http_answer(201, b'{"id": "rec_1"}')]

    async def add(url: str) -> str:
        async with AsyncClient(url, KEY, sleep=lambda _: asyncio.sleep(0)) as client:
            made = await client.records.create(
                session_id="ses_1", kind="k", title="t", content={"at": WHEN}
            )
            return made["id"]

    with Receiver(lambda _: left.pop(0)) as service:
        assert asyncio.run(add(service.url(""))) == "rec_1"
    sent = service.requests
    assert len(sent) == 2
    assert len({each.headers["idempotency-key"] for each in sent}) == 1
    assert json.loads(sent[1].body)["content"] == {"at": "2026-01-31T12:00:00+00:00"}


def test_a_value_that_json_has_no_form_for_is_refused_with_its_place_and_not_sent() -> None:
    with Receiver(http_answer(201, b"{}")) as service, Client(service.url(""), KEY) as client:
        content = {"rows": [1, {"share": float("nan")}]}
        with pytest.raises(Unfit) as raised:
            client.records.create(session_id="ses_1", kind="k", title="t", content=content)
        assert raised.value.path == "/content/rows/1/share"
        assert service.requests == []


def test_an_idempotency_key_that_no_header_carries_is_refused_unsent() -> None:
    with Client("http://127.0.0.1:9", "svc_key", patience=0) as client:
        for key in ("schlüssel", "a\r\nb"):
            with pytest.raises(RecordsError, match="idempotency key"):
                client.agents.create(name="desk", idempotency_key=key)
