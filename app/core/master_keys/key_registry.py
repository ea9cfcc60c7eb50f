"""The registry of master keys that may have sealed something.

A key is registered when it is a process's active key (the first of MASTER_KEYS), which each process
says at its start and twice a minute, or when a seal under it is found. It is missed until
`master-key status` has scanned everything and found no seal under it.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.database import Database, cursor
from app.lib.crypto.sealing import MasterKeys
from app.lib.repeater import Repeater

EVERY_SECONDS = 30.0
# At the process's end, for a heartbeat in progress.
LAST_SECONDS = 2.0
LATELY = timedelta(minutes=3)

# Unless a process did within the last minute.
_IN_FRONT = """
INSERT INTO master_keys AS k (key_id, in_front_at) VALUES (%s, clock_timestamp())
ON CONFLICT (key_id) DO UPDATE SET in_front_at = excluded.in_front_at, emptied_at = NULL
 WHERE k.emptied_at IS NOT NULL
    OR (k.in_front_at > clock_timestamp() - interval '1 minute') IS NOT TRUE
"""
_TOUCH = "UPDATE master_keys SET in_front_at = in_front_at WHERE key_id = %s"
_LACKING = """
SELECT key_id FROM master_keys
 WHERE emptied_at IS NULL AND key_id <> ALL (%s) ORDER BY key_id
"""
_OLDER = """
SELECT key_id FROM master_keys WHERE emptied_at IS NULL AND key_id = ANY (%s) ORDER BY key_id
"""
_LATELY_IN_FRONT = """
SELECT key_id, in_front_at FROM master_keys
 WHERE key_id <> %s AND in_front_at > coalesce(%s, clock_timestamp()) - %s ORDER BY key_id
"""
_USED = """
INSERT INTO master_keys (key_id) SELECT unnest(%s::text[])
ON CONFLICT (key_id) DO UPDATE SET emptied_at = NULL
"""
_EMPTIED = """
UPDATE master_keys SET emptied_at = clock_timestamp()
 WHERE emptied_at IS NULL AND key_id <> ALL (%s) AND coalesce(in_front_at < %s - %s, true)
"""


def heartbeat(database: Database, master_keys: MasterKeys) -> Repeater:
    """Return what announces a process's key again and again; begin it anew after a fork.

    So a process that was not restarted, and seals under an old key, is known.
    """

    def beat() -> None:
        with database.across_tenants() as session:
            announce(session, master_keys)

    failed = "master_key_not_announced"
    return Repeater("announcer", beat, EVERY_SECONDS, failed=failed)


def announce(session: Session, master_keys: MasterKeys) -> None:
    """Record the newest of these as active, unless a process did within the last minute."""
    cursor(session).execute(_IN_FRONT, (master_keys.ids[0],))


def touch(session: Session, master_keys: MasterKeys) -> None:
    """Write the newest key's row again as it is: proof that the database takes a write."""
    cursor(session).execute(_TOUCH, (master_keys.ids[0],))


def missing(session: Session, master_keys: MasterKeys) -> list[str]:
    """Return the ids of registered keys that are not among these."""
    return cursor(session, scalar_row).execute(_LACKING, (list(master_keys.ids),)).fetchall()


def older(session: Session, master_keys: MasterKeys) -> list[str]:
    """Return the ids of these keys, but for the newest, that may have sealed something."""
    return cursor(session, scalar_row).execute(_OLDER, (list(master_keys.ids[1:]),)).fetchall()


def say_missing(missing: Collection[str]) -> str:
    """Return one line on the missing keys and the remedy."""
    return (
        f"MASTER_KEYS lacks {', '.join(missing)}, which may have sealed what is here: ask "
        "`python -m app.manage master-key status`, and put it back if anything is under it"
    )


def in_front(
    session: Session, *, besides: str, since: datetime | None = None
) -> list[tuple[str, datetime]]:
    """Return the active keys of processes, and when each was last recorded.

    Those of the last three minutes, or since three minutes before `since`.
    """
    return cursor(session).execute(_LATELY_IN_FRONT, (besides, since, LATELY)).fetchall()


def settle(
    session: Session, master_keys: MasterKeys, found: Collection[str], *, began: datetime
) -> None:
    """Record that a scan of all seals ended, and that these keys were `found` in use.

    A key active shortly before the scan `began`, or since, may have sealed rows already scanned.
    """
    cursor(session).execute(_USED, (sorted(found),))
    cursor(session).execute(_EMPTIED, ([*found, master_keys.ids[0]], began, LATELY))
