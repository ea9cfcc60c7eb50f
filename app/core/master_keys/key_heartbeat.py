"""What each process that seals says of itself, asked or not: which master key it has in front.

A web process or worker that was not restarted seals on under the old key, though nobody may ask it
for `/readyz` and another worker takes each tick. So it says so at its start and twice a minute from
then on, from a thread of its own, which nothing waits for: as long as it lives, and reaches the
database to put a seal there, what `key_registry.py` knows of it is younger than two minutes.
"""

import threading

import structlog

from app.core.master_keys import key_registry
from app.database import Database
from app.lib.crypto.sealing import MasterKeys

_log = structlog.get_logger(__name__)

EVERY_SECONDS = 30.0
# After what could not be said.
AGAIN_SECONDS = 5.0
_LAST_SECONDS = 2.0


class Announcer:
    """Announces the newest of a process's master keys; one a process."""

    def __init__(self, database: Database, master_keys: MasterKeys) -> None:
        self._database = database
        self._master_keys = master_keys
        self._beginning = threading.Lock()
        self._stopping = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Announce from now on; calling it again costs next to nothing.

        For a process that forks afterwards takes no thread along, the web says so each time.
        """
        if self._thread is None or not self._thread.is_alive():
            with self._beginning:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """End; what is being said right now has two seconds."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = EVERY_SECONDS if self._announce() else AGAIN_SECONDS

    def _announce(self) -> bool:
        try:
            with self._database.across_tenants() as session:
                key_registry.announce(session, self._master_keys)
        except Exception as error:  # noqa: BLE001  # whatever it is, the next time may succeed
            if not self._failing:
                _log.warning("master_key_not_announced", error=type(error).__name__)
            self._failing = True
            return False
        self._failing = False
        return True
