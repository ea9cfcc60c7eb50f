"""Which master keys may have sealed something here: a row for each that a process was given.

A process notes its own keys when it looks, and learns of any that it lacks. A key is missed until
somebody has looked through everything and found nothing under it (`status.py`). Each also says now
and then which key it has in front: there is nothing to be gained by sealing anew while others still
seal under the old one.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from app.database import cursor
from app.lib.sealing import MasterKeys

LATELY = timedelta(minutes=3)
_SAY_AGAIN = timedelta(minutes=1)

_KNOWN = """
SELECT key_id, emptied_at IS NULL,
       emptied_at IS NULL AND coalesce(in_front_at > clock_timestamp() - %s, false)
  FROM master_keys
"""
_SEEN = "INSERT INTO master_keys (key_id) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING"
_IN_FRONT = """
INSERT INTO master_keys (key_id, in_front_at) VALUES (%s, clock_timestamp())
ON CONFLICT (key_id) DO UPDATE SET in_front_at = excluded.in_front_at, emptied_at = NULL
"""
_LATELY_IN_FRONT = """
SELECT key_id, in_front_at FROM master_keys
 WHERE key_id <> %s AND in_front_at > clock_timestamp() - %s ORDER BY key_id
"""
_USED = """
INSERT INTO master_keys (key_id) SELECT unnest(%s::text[])
ON CONFLICT (key_id) DO UPDATE SET emptied_at = NULL
"""
_EMPTIED = """
UPDATE master_keys SET emptied_at = clock_timestamp()
 WHERE emptied_at IS NULL AND key_id <> ALL (%s)
   AND coalesce(in_front_at < clock_timestamp() - %s, true)
"""


def check(session: Session, master_keys: MasterKeys) -> list[str]:
    """Note what this process was given; return the ids of keys in use that it was not given."""
    rows = cursor(session).execute(_KNOWN, (_SAY_AGAIN,)).fetchall()
    in_use: Mapping[str, bool] = {key_id: used for key_id, used, _ in rows}
    if not in_use.keys() >= set(master_keys.ids):
        cursor(session).execute(_SEEN, (list(master_keys.ids),))
    newest = master_keys.ids[0]
    if not any(said for key_id, _, said in rows if key_id == newest):
        cursor(session).execute(_IN_FRONT, (newest,))
    return sorted(key for key, used in in_use.items() if used and key not in master_keys.ids)


def say_missing(missing: Collection[str]) -> str:
    """Say in one line what is wrong, and what to do about it."""
    return (
        f"MASTER_KEYS lacks {', '.join(missing)}, which may have sealed what is here: ask "
        "`python -m app.manage master-key status`, and put it back if anything is under it"
    )


def in_front(session: Session, *, besides: str) -> list[tuple[str, datetime]]:
    """Return the keys that some process lately had in front, and when it said so."""
    return cursor(session).execute(_LATELY_IN_FRONT, (besides, LATELY)).fetchall()


def settle(session: Session, master_keys: MasterKeys, found: Collection[str]) -> None:
    """Note that everything was looked through, and that these keys were `found` in use."""
    cursor(session).execute(_USED, (sorted(found),))
    cursor(session).execute(_EMPTIED, ([*found, master_keys.ids[0]], LATELY))
