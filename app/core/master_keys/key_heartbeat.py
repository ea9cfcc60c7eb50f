"""Heartbeat: records each process's active master key, at its start and twice a minute.

So `key_registry` also knows of a process that was not restarted and seals under an old key.
"""

from app.core.master_keys import key_registry
from app.database import Database
from app.lib.crypto.sealing import MasterKeys
from app.lib.repeater import Repeater

EVERY_SECONDS = 30.0
# After an error.
AGAIN_SECONDS = 5.0
_LAST_SECONDS = 2.0


class Announcer:
    """Announces the newest of a process's master keys; one a process."""

    def __init__(self, database: Database, master_keys: MasterKeys) -> None:
        self._database = database
        self._master_keys = master_keys
        self._thread = Repeater(
            "announcer",
            self._announce,
            EVERY_SECONDS,
            again=AGAIN_SECONDS,
            failed="master_key_not_announced",
        )

    def begin(self) -> None:
        """Announce from now on; called again after a fork."""
        self._thread.begin()

    def close(self) -> None:
        """End; an announcement under way has two seconds."""
        self._thread.close(_LAST_SECONDS)

    def _announce(self) -> None:
        with self._database.across_tenants() as session:
            key_registry.announce(session, self._master_keys)
