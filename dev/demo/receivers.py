"""Receivers of webhooks on this machine, written as a receiver should be.

Each verifies the signature first, over the bytes as they came, and answers 401 where it does not
hold. What it then answers is up to its owner: here, one takes everything and one has a bad day.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

Event = Mapping[str, Any]

OK, UNAUTHORIZED, UNPROCESSABLE, UNAVAILABLE = 200, 401, 422, 503


@dataclass(frozen=True)
class Arrival:
    """One request as it came in; header names are in lower case, `at` is monotonic seconds."""

    at: float
    headers: Mapping[str, str]
    body: bytes
    status: int

    @property
    def id(self) -> str:
        """The event's id: the same in every attempt and replay, so receivers know it again."""
        return self.headers["webhook-id"]

    @property
    def sequence(self) -> int | None:
        """This webhook's number of the event; a test has none."""
        number = self.headers.get("x-service-sequence")
        return None if number is None else int(number)


class Receiver:
    """An HTTP server on a free port of 127.0.0.1, for the length of a `with`."""

    def __init__(self, name: str, answer: Callable[[Event], int]) -> None:
        """`answer` returns the status for an event whose signature holds."""
        self.name = name
        self.secret = ""
        self._answer = answer
        self._arrivals: list[Arrival] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._receive))

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}/hooks"

    @property
    def arrivals(self) -> list[Arrival]:
        """Everything that has come in so far, in that order."""
        return list(self._arrivals)

    def accepted(self) -> dict[str, Arrival]:
        """Return what it has answered well, by event id; a repeat counts once."""
        return {each.id: each for each in self.arrivals if each.status == OK}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name=self.name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _receive(self, headers: Mapping[str, str], body: bytes) -> int:
        at = time.monotonic()
        status = self._answer(json.loads(body)) if self._verifies(headers, body) else UNAUTHORIZED
        self._arrivals.append(Arrival(at, headers, body, status))
        return status

    def _verifies(self, headers: Mapping[str, str], body: bytes) -> bool:
        try:
            Webhook(self.secret).verify(body, dict(headers))
        except WebhookVerificationError:
            return False
        return True


def takes_everything(event: Event) -> int:
    """Answer any event well."""
    return OK


def takes_nothing(event: Event) -> int:
    """Refuse any event."""
    return UNPROCESSABLE


class TicketDesk:
    """A ticket system on a bad day: down for its first seconds, and its mapping lacks a severity.

    Until `learn` is called it refuses what is `critical`, as an unfinished field mapping does.
    """

    def __init__(self, down_seconds: float) -> None:
        self._down_seconds = down_seconds
        self._up_at: float | None = None
        self._knows_critical = False

    def learn(self) -> None:
        """Finish the mapping: take critical findings from now on."""
        self._knows_critical = True

    def __call__(self, event: Event) -> int:
        """Answer one event; the outage begins with the first."""
        now = time.monotonic()
        if self._up_at is None:
            self._up_at = now + self._down_seconds
        if now < self._up_at:
            return UNAVAILABLE
        unknown = event["data"].get("severity") == "critical" and not self._knows_critical
        return UNPROCESSABLE if unknown else OK


def _handler(receive: Callable[[Mapping[str, str], bytes], int]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receive(headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Say nothing: the demo tells what arrived."""

    return Handler
