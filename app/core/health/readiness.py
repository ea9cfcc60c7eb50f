"""The state of writes, log, anchoring, audit chains, master keys and mail, for `/readyz`.

A tick in each web process computes it every five seconds while `/readyz` is asked, and keeps it in
memory. A state older than three periods is reported as unknown, with its age.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from app.core.anchoring import incidents
from app.core.anchoring import status as anchoring_status
from app.core.anchoring.evidence import Chooser
from app.core.digests import digest_rows, troubles
from app.core.health import gauges, write_proof
from app.core.log import generations, publication, status
from app.core.log.generations import Generation
from app.core.master_keys import key_registry
from app.core.verification import alerts, daily
from app.database import Database
from app.errors import LogDamaged
from app.ledger.notes import Malformed
from app.lib.repeater import Repeater
from app.settings import Settings

EVERY_SECONDS = 5.0
# Seconds that a request waits for a computation in progress.
_WAIT_SECONDS = 1.0
_LAST_SECONDS = 2.0
_NEVER = float("-inf")
_READ_HERE = (
    *("database_writes", "log", "anchoring", "anchored_by"),
    *("audit", "master_keys", "mail"),
)


@dataclass(frozen=True)
class _State:
    """The result, and its time by the process's clock."""

    parts: dict[str, str] = field(default_factory=dict)
    at: float = _NEVER


class Readiness:
    """The state that one process last computed, and the thread that computes it."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        every: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up; `clock` returns seconds. The first call of `parts` computes the first state."""
        self._database = database
        self._settings = settings
        self._every = every
        self._clock = clock
        self._state = _State()
        self._asked = self._tried = _NEVER
        self._computing = threading.Lock()
        self._thread = Repeater("readiness", self._tick, every, failed="readiness_not_computed")

    def parts(self) -> dict[str, str]:
        """Return the state of each part: "up", or its problem.

        Computes it if the last state is over three periods old, and is `unknown` if that fails.
        """
        self._asked = self._clock()
        if self._clock() - self._state.at > 3 * self._every:
            self._thread.work()
        self._thread.begin()
        state = self._state
        age = self._clock() - state.at
        if age <= 3 * self._every:
            return state.parts
        last = f"computed {age:.0f} s ago" if state.parts else "never computed"
        return self.unknown(f"unknown: {last}, look for readiness_not_computed in this web process")

    def unknown(self, why: str = "unknown") -> dict[str, str]:
        """Return `why` for every part that is read from the database."""
        return {**dict.fromkeys(_READ_HERE, why), "log_head": self._log_head}

    def compute(self) -> None:
        """Compute the state now. Raises `Unavailable`."""
        with self._database.across_tenants() as session:
            gauges.limit_time(session)
            parts = self._read(session)
        refused = write_proof.refusal(self._database, self._settings.master_keys)
        self._state = _State({"database_writes": refused or "up", **parts}, self._clock())

    def close(self) -> None:
        """Stop; waits up to two seconds for a computation in progress."""
        self._thread.close(_LAST_SECONDS)

    def _tick(self) -> None:
        """Compute the state, unless no request came lately, or another thread does or just did."""
        now = self._clock()
        patience = max(self._tried + _WAIT_SECONDS - now, 0.0)
        # The next request computes it: an idle service has no cost.
        if now - self._asked > 3 * self._every or not self._computing.acquire(timeout=patience):
            return
        try:
            if self._clock() - self._tried > self._every / 2:
                self._tried = self._clock()
                self.compute()
        finally:
            self._computing.release()

    @property
    def _log_head(self) -> str:
        return "kept" if self._settings.log_head_url else status.NO_HEAD

    def _read(self, session: Session) -> dict[str, str]:
        keys = self._settings.master_keys
        generation = generations.newest(session)
        missing = key_registry.missing(session, keys)
        broken = [alerts.standing(session), daily.standing(session, keys)]
        return {
            "log": _log(session, generation),
            "log_head": self._log_head,
            "anchoring": "; ".join(map(incidents.line, incidents.rows(session))) or "up",
            "anchored_by": self._anchored_by(session, generation),
            "audit": "; ".join(filter(None, broken)) or "up",
            "master_keys": key_registry.say_missing(missing) if missing else "up",
            "mail": self._mail(session),
        }

    def _mail(self, session: Session) -> str:
        if self._settings.takes_mail:
            return "; ".join(troubles.of_operator(troubles.read(session))) or "up"
        waiting = digest_rows.open_ones(session)
        return f"SMTP_URL is not set: {waiting} digests wait" if waiting else "up"

    def _anchored_by(self, session: Session, generation: Generation | None) -> str:
        policy, trusted = self._settings.witness_policy, self._settings.tsa_ca_file
        others = anchoring_status.asked(
            timestamps=self._settings.tsa_url is not None, policy=policy
        )
        try:
            last = None if generation is None else publication.newest(session, generation)
            reach = None if last is None else Chooser(session, last, policy, trusted).reach()
        except Malformed:
            return "Unknown: the stored log data is damaged."
        return anchoring_status.of_log(reach, others)


def _log(session: Session, generation: Generation | None) -> str:
    """Return the slug of the problem that halts or damages the log, or "up"."""
    trouble = generation and generation.trouble
    if trouble is None and alerts.log_is_damaged(session):
        return LogDamaged.slug
    return trouble or "up"
