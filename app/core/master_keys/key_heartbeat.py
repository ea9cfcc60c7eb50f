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
# At the process's end, for a heartbeat in progress.
LAST_SECONDS = 2.0


def of(database: Database, master_keys: MasterKeys) -> Repeater:
    """Return the heartbeat of a process, which has one; begin it again after a fork."""

    def beat() -> None:
        with database.across_tenants() as session:
            key_registry.announce(session, master_keys)

    failed = "master_key_not_announced"
    return Repeater("announcer", beat, EVERY_SECONDS, again=AGAIN_SECONDS, failed=failed)
