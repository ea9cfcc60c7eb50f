"""Waits until the processes and stores that were started are up.

Other parts that `/readyz` reports (a broken audit chain, an authority out of reach) may be degraded
for days: they are printed, and not waited for.
"""

import http.client
import json
import time
from collections.abc import Callable

# The parts of /readyz that must be up.
_NEEDED = frozenset({"web", "database", "redis", "worker", "scheduler"})

_ASK_SECONDS = 0.5
_ANSWER_SECONDS = 2.0
_REMIND_SECONDS = 15.0


def get(host: str, port: int, path: str) -> tuple[int, bytes]:
    """GET a path of the service; return status and body. Raises `OSError` without an answer."""
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


class Readiness:
    """Asks `/readyz` now and then, until it misses nothing that is needed to run."""

    def __init__(
        self, host: str, port: int, *, ready: Callable[[str], None], remind: Callable[[str], None]
    ) -> None:
        """`ready` is called once, with what is degraded all the same ("" if nothing is).

        `remind` is called every 15 s until then, with what is still missing.
        """
        self._host, self._port = host, port
        self._ready, self._remind = ready, remind
        self._done = False
        self._ask_at = 0.0
        self._remind_at = time.monotonic() + _REMIND_SECONDS

    def poll(self) -> None:
        """Ask once more, if it is time to."""
        now = time.monotonic()
        if self._done or now < self._ask_at:
            return
        self._ask_at = now + _ASK_SECONDS
        try:
            status, body = get(self._host, self._port, "/readyz")
            degraded = json.loads(body)["degraded"] if status == 200 else ["database"]
        except OSError:
            degraded = ["web"]
        missing = [name for name in degraded if name in _NEEDED]
        if not missing:
            self._done = True
            self._ready(", ".join(degraded))
        elif now >= self._remind_at:
            self._remind_at = now + _REMIND_SECONDS
            self._remind(", ".join(missing))
