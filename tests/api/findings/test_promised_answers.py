"""A hot route answers on the event loop as in a thread, which answers all that is odd."""

import asyncio
import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask

from app import metrics
from app.api.http import promises, rate_limit
from app.api.http.services import EXTENSION, Services
from app.lib.gateway.answers import Application
from app.lib.gateway.gateway import PROMISE, Environ, Promise
from app.lib.rates import Counter, Rate
from tests.support.callers.api import Answer, Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import finding_of, make_session, record_of
from tests.support.faults import LONG_ENOUGH
from tests.unit.http.gateway.exchange import Exchange, gateway, serve

PATH = "/v1/findings"


class Sender:
    """Sends POSTs through a gateway and notes which got a promised answer."""

    def __init__(self, app: Flask, key: str) -> None:
        self._app = app
        self.headers = {
            "host": "records.test",
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
        }
        self.kept = 0
        self._gateway = gateway(self._noting(app.wsgi_app), 4, promising=promises.paths(app))

    def post(self, body: bytes, path: str = PATH, **headers: str | None) -> Exchange:
        """Send one request; a header of None is left out."""
        return asyncio.run(self._all([self._exchange(body, path, headers)]))[0]

    def post_all(self, bodies: list[bytes]) -> list[Exchange]:
        """Send several at once."""
        return asyncio.run(self._all([self._exchange(body, PATH, {}) for body in bodies]))

    async def _all(self, exchanges: list[Exchange]) -> list[Exchange]:
        async with asyncio.timeout(LONG_ENOUGH):
            await asyncio.gather(*(serve(self._gateway, each) for each in exchanges))
        return exchanges

    def _exchange(self, body: bytes, path: str, headers: dict[str, str | None]) -> Exchange:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {**self.headers, "content-length": str(len(body)), **named}
        pairs = [
            (name.encode(), value.encode()) for name, value in sent.items() if value is not None
        ]
        made = Exchange("POST", path, *pairs).with_body(body)
        made.scope["query_string"] = b""
        return made

    def _noting(self, application: Application) -> Application:
        def noting(environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
            parts = application(environ, start)
            if promise := environ.get(PROMISE):
                environ[PROMISE] = partial(self._note, promise)
            return parts

        return noting

    async def _note(self, promise: Promise) -> tuple[int, bytes] | None:
        kept = await promise()
        self.kept += kept is not None
        return kept


@pytest.fixture
def session_id(api: ApiOf) -> str:
    return str(make_session(api())["id"])


@pytest.fixture
def sender(app: Flask, tenant: FreshTenant, session_id: str) -> Sender:
    """A sender whose key the application knows, since it has made the session."""
    assert session_id
    return Sender(app, tenant.root_key)


@pytest.fixture
def few(app: Flask) -> Iterator[None]:
    """Allow three requests of a key in an hour."""
    limits = app.extensions[rate_limit.EXTENSION]
    three = Counter(Rate(3, 3600), "by this API key")
    app.extensions[rate_limit.EXTENSION] = rate_limit.Limits(
        three, limits.tenants, limits.addresses, limits.refusals, limits.sign_ins
    )
    yield
    app.extensions[rate_limit.EXTENSION] = limits


def headers_of(exchange: Exchange) -> dict[str, str]:
    pairs = [(name.decode(), value.decode()) for name, value in exchange.sent[0]["headers"]]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_headers_body_metrics_and_log_line_are_those_of_a_thread(
    app: Flask,
    api: ApiOf,
    sender: Sender,
    session_id: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here: Services = app.extensions[EXTENSION]
    counted = ("POST", PATH, "201")
    body = finding_of(session_id, detail="é", data={"a": [1, None]})
    before = here.tally.value(metrics.HTTP_REQUESTS, *counted)
    capsys.readouterr()
    slow: Answer = api().post(PATH, body, headers={"X-Request-ID": "the-slow"})
    exchange = sender.post(json.dumps(body).encode(), x_request_id="the-fast")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sender.kept == 1
    assert here.tally.value(metrics.HTTP_REQUESTS, *counted) == before + 2
    own = ("x-request-id", "ratelimit-remaining", "ratelimit-reset")
    ours, theirs = headers_of(exchange), {name.lower(): text for name, text in slow.headers}
    assert (exchange.status, slow.status_code) == (201, 201)
    assert ours.keys() == theirs.keys()
    assert {**ours, **dict.fromkeys(own)} == {**theirs, **dict.fromkeys(own)}
    assert (ours["x-request-id"], theirs["x-request-id"]) == ("the-fast", "the-slow")
    assert int(ours["ratelimit-remaining"]) == int(theirs["ratelimit-remaining"]) - 1
    made = json.loads(exchange.body)
    assert {**made, "id": 0, "created_at": 0} == {**slow.json, "id": 0, "created_at": 0}
    assert api().get(f"{PATH}/{made['id']}").data.strip() == exchange.body
    line = {each["request_id"]: each for each in lines if each["event"] == "request"}
    fast, flask = line["the-fast"], line["the-slow"]
    assert fast.keys() == flask.keys()
    same = ("method", "route", "status", "problem", "address", "key_id", "level")
    assert [fast[name] for name in same] == [flask[name] for name in same]


def test_a_batch_is_answered_there_and_a_body_that_is_long_elsewhere(
    sender: Sender, session_id: str
) -> None:
    new = {"findings": [finding_of(session_id, title=str(number)) for number in range(3)]}
    small = sender.post(json.dumps(new).encode(), f"{PATH}/batch")
    assert [each["title"] for each in json.loads(small.body)["data"]] == ["0", "1", "2"]
    assert sender.kept == 1
    new["findings"] *= 100
    long = sender.post(json.dumps(new).encode(), f"{PATH}/batch")
    assert (len(json.loads(long.body)["data"]), sender.kept) == (300, 1)


RECORDS = "/v1/records"


def record(session_id: str, **more: Any) -> bytes:
    return json.dumps(record_of(session_id, **more)).encode()


def test_a_record_is_signed_there_once_its_session_is_known(
    api: ApiOf, sender: Sender, session_id: str
) -> None:
    first = sender.post(record(session_id), RECORDS)
    assert (first.status, sender.kept) == (201, 0)
    second = sender.post(record(session_id, title="second"), RECORDS)
    assert (second.status, sender.kept) == (201, 1)
    made = json.loads(second.body)
    assert api().get(f"{RECORDS}/{made['id']}").json == made
    assert headers_of(first).keys() == headers_of(second).keys()
    long = sender.post(record(session_id, content="x" * 5000), RECORDS)
    assert (long.status, sender.kept) == (201, 1)


def test_a_record_whose_agent_was_renamed_is_signed_anew_by_a_thread(
    api: ApiOf, sender: Sender, session_id: str
) -> None:
    sender.post(record(session_id), RECORDS)
    agent_id = api().get(f"/v1/sessions/{session_id}").json["agent_id"]
    assert api().patch(f"/v1/agents/{agent_id}", {"name": "renamed"}).status_code == 200
    made = sender.post(record(session_id), RECORDS)
    assert (made.status, sender.kept) == (201, 0)
    bundle = api().get(f"{RECORDS}/{json.loads(made.body)['id']}/bundle").json
    assert bundle["record"]["agent"]["name"] == "renamed"


def test_a_record_of_a_completed_session_is_refused_by_a_thread(
    api: ApiOf, sender: Sender, session_id: str
) -> None:
    sender.post(record(session_id), RECORDS)
    assert (
        api().post(f"/v1/sessions/{session_id}/complete", {"outcome": "succeeded"}).status_code
        == 200
    )
    refused = sender.post(record(session_id), RECORDS)
    assert (refused.status, sender.kept) == (409, 0)


def test_a_records_idempotency_key_is_answered_once_and_replayed(
    api: ApiOf, sender: Sender, session_id: str
) -> None:
    sender.post(record(session_id), RECORDS)
    first, again = (sender.post(record(session_id), RECORDS, idempotency_key="k") for _ in range(2))
    assert (first.status, again.status, sender.kept) == (201, 201, 1)
    assert first.body == again.body
    assert headers_of(again)["idempotent-replayed"] == "true"
    assert len(api().get(RECORDS).json["data"]) == 2


def test_a_packed_batch_is_answered_elsewhere(sender: Sender, session_id: str) -> None:
    packed = gzip.compress(json.dumps({"findings": [finding_of(session_id)] * 300}).encode())
    answered = sender.post(packed, f"{PATH}/batch", content_encoding="gzip")
    assert (len(json.loads(answered.body)["data"]), sender.kept) == (300, 0)


def test_no_event_loop_waits_for_the_database(app: Flask) -> None:
    here: Services = app.extensions[EXTENSION]

    async def ask() -> None:
        here.database.ask("SELECT %s", (1,))

    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(ask())


def odd(session_id: str) -> dict[str, tuple[bytes, dict[str, str | None], int]]:
    good = json.dumps(finding_of(session_id)).encode()
    strange = json.dumps(finding_of(f"ses_{uuid4().hex}")).encode()
    return {
        "no JSON": (b"{", {}, 400),
        "no object": (b"[]", {}, 422),
        "an unknown field": (good.replace(b'"rule"', b'"role"'), {}, 422),
        "a name twice": (good.replace(b"{", b'{"rule": "b", ', 1), {}, 422),
        "no session": (strange, {}, 404),
        "too large an event": (
            json.dumps(finding_of(session_id, detail="x" * 10_001)).encode(),
            {},
            422,
        ),
        "no key": (good, {"authorization": None}, 401),
        "an unknown key": (good, {"authorization": "Bearer svc_" + "a" * 46}, 401),
        "two credentials": (good, {"x_api_key": "another"}, 400),
        "another media type": (good, {"content_type": "text/plain"}, 415),
        "a coding": (good, {"content_encoding": "br"}, 415),
        "no host": (good, {"host": None}, 400),
        "a strange host": (good, {"host": "a b"}, 400),
        "a malformed idempotency key": (good, {"idempotency_key": ""}, 422),
        "too many headers": (good, {f"x-{n}": "a" * 5000 for n in range(4)}, 431),
        "a charset": (good, {"content_type": "application/json; charset=utf-8"}, 201),
        "headers that are many": (good, {f"x-{n}": "a" * 4500 for n in range(2)}, 201),
    }


@pytest.mark.parametrize("name", odd("ses_" + "0" * 32))
def test_what_is_odd_is_answered_by_a_thread(
    app: Flask, sender: Sender, session_id: str, name: str
) -> None:
    body, headers, status = odd(session_id)[name]
    exchange = sender.post(body, PATH, **headers)
    assert (exchange.status, sender.kept) == (status, status < 400), exchange.body
    if status >= 400:
        assert json.loads(exchange.body)["status"] == status


def test_a_key_that_only_reads_is_refused(app: Flask, mint: Mint, session_id: str) -> None:
    key = mint("read")
    Api(app.test_client(), key).get(PATH)
    sender = Sender(app, key)
    exchange = sender.post(json.dumps(finding_of(session_id)).encode())
    assert (exchange.status, sender.kept) == (403, 0)


def test_a_revoked_key_among_valid_ones_is_refused_alone(
    app: Flask, api: ApiOf, mint: Mint, sender: Sender, session_id: str
) -> None:
    key = mint("write")
    revoked = Sender(app, key)
    good = json.dumps(finding_of(session_id)).encode()
    assert revoked.post(good).status == 201
    assert revoked.post(good).status == 201
    (key_id,) = [
        each["id"] for each in api().get("/v1/keys").json["data"] if each["name"] == "a write key"
    ]
    assert api().delete(f"/v1/keys/{key_id}").status_code == 204
    count = len(api().get(PATH).json["data"])
    exchange = revoked.post(good)
    assert (exchange.status, json.loads(exchange.body)["status"]) == (401, 401)
    assert {each.status for each in sender.post_all([good] * 5)} == {201}
    assert len(api().get(PATH).json["data"]) == count + 5


def test_an_idempotency_key_is_answered_once_and_replayed(
    api: ApiOf, sender: Sender, session_id: str
) -> None:
    body = json.dumps(finding_of(session_id, data={"é": 1.5})).encode()
    first = sender.post(body, idempotency_key="k")
    again = sender.post(body, idempotency_key="k")
    assert (first.status, again.status, sender.kept) == (201, 201, 1)
    assert json.loads(first.body) == json.loads(again.body)
    assert headers_of(again)["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in headers_of(first)
    by_flask = api().post(PATH, json.loads(body), headers={"Idempotency-Key": "k"})
    assert by_flask.json == json.loads(first.body)
    other = sender.post(body.replace(b"1.5", b"2.5"), idempotency_key="k")
    assert (other.status, sender.kept) == (422, 1)
    assert len(api().get(PATH).json["data"]) == 1


@pytest.mark.usefixtures("few")
def test_each_request_counts_once_against_its_limit(
    app: Flask, api: ApiOf, tenant: FreshTenant, session_id: str
) -> None:
    sender = Sender(app, tenant.root_key)
    good = json.dumps(finding_of(session_id)).encode()
    # Making the session took two of the three.
    answers = [sender.post(good), sender.post(b"{"), sender.post(good)]
    left = [headers_of(each)["ratelimit-remaining"] for each in answers]
    assert [each.status for each in answers] == [201, 429, 429]
    assert left == ["0", "0", "0"]
    known = app.extensions[EXTENSION].keyring.known(tenant.root_key)
    assert app.extensions[rate_limit.EXTENSION].keys.hit(known.key_id.bytes, 0).count == 5


def test_each_of_many_at_once_gets_its_own_answer(
    api: ApiOf, sender: Sender, session_id: str
) -> None:
    bodies = [
        json.dumps(finding_of(session_id, data={"mine": number})).encode() for number in range(100)
    ]
    answers = [json.loads(each.body) for each in sender.post_all(bodies)]
    assert [each["data"]["mine"] for each in answers] == list(range(100))
    assert len({each["id"] for each in answers}) == 100
    # More of one tenant at once than are promised have waited for a thread.
    assert 0 < sender.kept < 100
