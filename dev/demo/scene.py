"""The state that all chapters of the demo share."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.demo.api import Api
from dev.demo.outsider import signature_v2_holds
from dev.demo.receivers import UNAUTHORIZED, Arrival, Receiver, TicketDesk
from dev.demo.telling import Telling, Unmet

# Nothing here should take a tenth of it; a busy machine may.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.01
_LONGEST_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Scene:
    """The service, seen through its root admin key, and two receivers.

    `heed` is called while something is waited for; it raises if the demo must not go on. `now`
    rings an entry of the timetable. `tsa_ca_file` has the roots of the timestamp authority; None
    where none runs. `mail_folder` has the mails, as files.
    """

    telling: Telling
    api: Api
    base_url: str
    security: Receiver
    ticketing: Receiver
    desk: TicketDesk
    heed: Callable[[], None]
    now: Callable[[str], None]
    tsa_ca_file: Path | None
    mail_folder: Path

    @property
    def is_stamped(self) -> bool:
        """Whether a timestamp authority runs."""
        return self.tsa_ca_file is not None

    def wait_for(self, what: str, condition: Callable[[], object]) -> float:
        """Wait until `condition()` is true and return the seconds it took.

        Raises `Unmet` after a minute, and whatever `heed` raises.
        """
        began = time.monotonic()
        while not condition():
            self.heed()
            waited = time.monotonic() - began
            if waited > _PATIENCE_SECONDS:
                raise Unmet(f"{what} within {_PATIENCE_SECONDS:g} s")
            # Backoff: polling without rest slows the service down.
            time.sleep(min(_LONGEST_POLL_SECONDS, max(_POLL_SECONDS, waited / 20)))
        return time.monotonic() - began


@dataclass(frozen=True)
class Webhook:
    """A webhook of the demo, and the receiver behind it."""

    receiver: Receiver
    path: str

    def genuine(self, arrival: Arrival) -> bool:
        """Say whether a request was signed, by Standard Webhooks and by our own header."""
        # The receiver answers 401 to what `standardwebhooks` does not verify.
        return arrival.status != UNAUTHORIZED and signature_v2_holds(
            self.receiver.secret, arrival.headers, arrival.body
        )

    def all_genuine(self) -> bool:
        """Say whether every request so far was."""
        return all(map(self.genuine, self.receiver.arrivals))


# An event that the session must cause: its type, and what the API answers for its finding or
# session.
Expected = list[tuple[str, dict[str, Any]]]


def in_ms(seconds: float) -> str:
    """Write a short time."""
    return f"{seconds * 1000:.0f} ms"
