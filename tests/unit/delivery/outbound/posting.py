"""POSTs of tests: body, headers, names that resolve as told."""

import ipaddress
import time
from collections.abc import Sequence

from app.lib.outbound.addresses import Address
from app.lib.outbound.client import Answer, Outbound

BODY = b'{"id": "evt_1"}'
HEADERS = {"content-type": "application/json", "user-agent": "record-service/0.1.0"}
# Milliseconds do; then the rest of a deadline is spent on what never ends.
ENOUGH_TO_CONNECT = 1
HERE = ipaddress.ip_address("127.0.0.1")


class Names:
    """A resolver that answers what the test says and counts how often it is asked."""

    def __init__(self, *answers: Sequence[Address]) -> None:
        self.asked: list[str] = []
        self._answers = answers

    def __call__(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        return self._answers[min(len(self.asked), len(self._answers)) - 1]


def post(client: Outbound, url: str, *, seconds: float = 5.0, owner: str = "webhook") -> Answer:
    """Send as one webhook does, and hold the answer to what is promised of every answer."""
    started = time.monotonic()
    with client.burst(owner) as burst:
        answer = burst.send(url, BODY, HEADERS, deadline_seconds=seconds)
    # A guard: without a deadline, servers here that never end would be waited for.
    assert time.monotonic() - started < seconds + 10
    assert (answer.failure is None) == (answer.status is not None)
    if answer.error is not None:
        for python in ("Error", "Errno", "object at", "('", "None", "\n"):
            assert python not in answer.error
    return answer
