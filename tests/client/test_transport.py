"""One request of the client: tried again where that is safe, as the service says."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from record_service import Client, Conflict, RecordsError, Unavailable, Unreachable

from tests.support.servers.receivers import Receiver, Request, http_answer

KEY = "svc_" + "k" * 46
OK = http_answer(200, b'{"id": "x"}')


def problem(status: int, slug: str, **headers: str) -> bytes:
    body = {"type": f"https://records.test/problems/{slug}", "title": "No", "status": status}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http_answer(status, json.dumps(body).encode(), named)


class Service:
    """A client of a service that gives these answers, one after the other; the last for ever."""

    def __init__(self, receiver: Receiver, patience: float) -> None:
        self.receiver = receiver
        self.slept: list[float] = []
        self.client = Client(
            receiver.url(""),
            KEY,
            patience=patience,
            sleep=self.slept.append,
        )


@contextmanager
def answering(*answers: bytes | None, patience: float = 20.0) -> Iterator[Service]:
    left = list(answers)

    def answer(request: Request) -> bytes | None:
        return left.pop(0) if len(left) > 1 else left[0]

    with Receiver(answer) as receiver:
        yield Service(receiver, patience)


Ask = Callable[[Client], Any]
GET: Ask = lambda client: client.get("/v1/records")  # noqa: E731
PATCH: Ask = lambda client: client.patch("/v1/x", {})  # noqa: E731
POST: Ask = lambda client: client.post("/v1/x", {})  # noqa: E731
BUSY = problem(503, "busy", Retry_After="3")
LIMITED = problem(429, "rate-limited", Retry_After="7")
RUNNING = problem(409, "idempotency-key-in-use")


@pytest.mark.parametrize(
    ("ask", "first", "slept"),
    [
        (GET, BUSY, [3.0]),
        (POST, BUSY, [3.0]),
        (GET, None, None),
        (POST, None, None),
        (POST, problem(500, "internal-error"), None),
        (POST, RUNNING, None),
        (PATCH, LIMITED, [7.0]),
    ],
)
def test_what_is_safe_is_tried_again_when_the_service_says(
    ask: Ask, first: bytes | None, slept: list[float] | None
) -> None:
    with answering(first, OK) as service:
        assert ask(service.client) == {"id": "x"}

    sent = service.receiver.requests
    assert len(sent) == 2
    assert len({each.headers.get("idempotency-key") for each in sent}) == 1
    if slept is not None:
        assert service.slept == slept
    else:
        assert 0.0 < service.slept[0] <= 0.25


@pytest.mark.parametrize(
    ("ask", "answer", "error"),
    [
        (PATCH, BUSY, Unavailable),
        (PATCH, None, Unreachable),
        (GET, problem(503, "evidence-pack-failed"), Unavailable),
        (POST, problem(409, "session-completed"), Conflict),
        (GET, problem(429, "rate-limited", Retry_After="60"), Unavailable),
        (GET, http_answer(302, b"", {"Location": "https://other.test/"}), RecordsError),
        (GET, http_answer(200, b"<html>"), RecordsError),
    ],
)
def test_what_is_not_safe_or_in_vain_is_sent_once(
    ask: Ask, answer: bytes | None, error: type[RecordsError]
) -> None:
    with answering(answer) as service, pytest.raises(error) as raised:
        ask(service.client)

    assert len(service.receiver.requests) == 1
    assert "\n" not in str(raised.value)


def test_what_fails_on_and_on_ends_with_the_patience() -> None:
    with answering(problem(500, "internal-error"), patience=0.0) as service:
        with pytest.raises(Unavailable):
            GET(service.client)
        assert len(service.receiver.requests) == 1


def test_the_rate_that_is_spent_is_waited_for_before_the_next_request() -> None:
    spent = http_answer(200, b"{}", {"RateLimit-Remaining": "0", "RateLimit-Reset": "9"})
    with answering(spent, OK) as service:
        GET(service.client)
        GET(service.client)

    (slept,) = service.slept
    assert 0.0 < slept <= 9.0


def test_the_key_is_the_one_given_whatever_netrc_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("default login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with answering(OK) as service:
        GET(service.client)

    assert service.receiver.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("key", ["svc_\nbad", "svc bad", "schlüssel"])
def test_a_key_that_is_none_is_not_repeated(key: str) -> None:
    with pytest.raises(RecordsError) as raised:
        Client("http://127.0.0.1:9", key)
    assert key not in str(raised.value)


def test_a_list_is_followed_to_its_end() -> None:
    pages = [
        http_answer(200, json.dumps({"data": [{"n": n}], "next_cursor": cursor}).encode())
        for n, cursor in ((1, "c1"), (2, "c2"), (3, None))
    ]
    with answering(*pages) as service:
        assert [row["n"] for row in service.client.rows("/v1/records", kind="x")] == [1, 2, 3]

    paths = [each.path for each in service.receiver.requests]
    assert ["cursor=c1" in paths[1], "cursor=c2" in paths[2]] == [True, True]
    assert all("kind=x" in path for path in paths)
