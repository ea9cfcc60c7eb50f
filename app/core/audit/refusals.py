"""Refused access in the audit chain: at most one `access.refused` of a key in an hour.

The first is written at once, those after it are counted, and the next entry of the key has their
number: a flood of refusals writes no flood. An unknown key belongs to no tenant, so its refusal is
in the log alone.
"""

import threading
import time
from dataclasses import dataclass
from uuid import UUID

from app.core.audit import chain
from app.core.callers import Caller
from app.database import Database, cursor
from app.errors import AuditChainBroken, Unavailable
from app.ledger.hash_chain import Outcome
from app.lib.repeater import Repeater

ACTION = "access.refused"
EVERY_SECONDS = 20.0
"""How often counts are written; a process that is killed loses those since."""
_HOUR = 3600.0
_LAST_WRITE_SECONDS = 1.0

_KNOW = "INSERT INTO refused_access (tenant_id, key_id) VALUES (%s, %s) ON CONFLICT DO NOTHING"
# Two refusals of one key, in two processes too: the second waits, and finds the first one's entry.
_TURN = f"""
SELECT counted, extract(epoch FROM entered_at - clock_timestamp())::float8 + {_HOUR}
  FROM refused_access WHERE tenant_id = %s AND key_id = %s FOR UPDATE
"""
_ENTERED = """
UPDATE refused_access SET counted = 0, entered_at = clock_timestamp()
 WHERE tenant_id = %s AND key_id = %s
"""
_COUNTED = """
UPDATE refused_access SET counted = counted + %s WHERE tenant_id = %s AND key_id = %s
"""


@dataclass
class _Counted:
    """Refusals of a key that are in no entry and no row yet, while its hour lasts."""

    until: float = 0.0
    times: int = 0


class Refusals:
    """The refusals of one process, shared by its threads."""

    def __init__(self, database: Database) -> None:
        """Prepare; nothing runs until a refusal is counted."""
        self._database = database
        self._kept: dict[tuple[UUID, UUID], _Counted] = {}
        self._lock = threading.Lock()
        self._thread = Repeater(
            "refusals",
            self._write,
            EVERY_SECONDS,
            failed="refusals_not_written",
            at_end=_LAST_WRITE_SECONDS,
        )

    def note(self, caller: Caller, reason: str, route: str) -> None:
        """Enter a refusal of a known key into its tenant's chain, or count it.

        Where the database is away it is counted, for the next entry of the key. Raises
        `AuditChainBroken`, once an hour for a key.
        """
        self._thread.begin()
        key = (caller.tenant_id, caller.key_id)
        with self._lock:
            kept = self._kept.setdefault(key, _Counted())
            if time.monotonic() < kept.until:
                kept.times += 1
                return
        left, missed = 0.0, 1
        try:
            left, missed = self._enter(caller, reason, route), 0
        except AuditChainBroken:
            left = _HOUR
            raise
        except Unavailable:
            return
        finally:
            with self._lock:
                kept = self._kept.setdefault(key, kept)
                kept.until = time.monotonic() + left
                kept.times += missed

    def write(self) -> None:
        """Write the counts since the last time; after an error the next call writes them."""
        self._thread.work()

    def close(self) -> None:
        """Write the remaining counts, for at most a second, and stop."""
        self._thread.close(_LAST_WRITE_SECONDS)

    def _enter(self, caller: Caller, reason: str, route: str) -> float:
        """Append an entry, or count where another process wrote one; return its hour's rest."""
        key = (caller.tenant_id, caller.key_id)
        with self._database.transaction(caller.tenant_id) as session:
            cur = cursor(session)
            cur.execute(_KNOW, key)
            ((counted, left),) = cur.execute(_TURN, key).fetchall()
            if left is not None and left > 0:
                cur.execute(_COUNTED, (1, *key))
                return float(left)
            cur.execute(_ENTERED, key)
            details = {"reason": reason, "refused_since_last_entry": counted}
            target, outcome = ("route", route), Outcome.REFUSED
            chain.append_by(
                session, caller, ACTION, target=target, details=details, outcome=outcome
            )
        return _HOUR

    def _write(self) -> None:
        now = time.monotonic()
        with self._lock:
            # What ended without a count needs no place.
            ended = [key for key, each in self._kept.items() if each.until < now and not each.times]
            for key in ended:
                del self._kept[key]
            counts = {key: each.times for key, each in self._kept.items() if each.times}
        if not counts:
            return
        with self._database.across_tenants() as session:
            # Rows are locked in one order everywhere, so two processes do not deadlock.
            rows = [(times, *key) for key, times in sorted(counts.items())]
            cursor(session).executemany(_COUNTED, rows)
        with self._lock:
            for key, times in counts.items():
                if key in self._kept:
                    self._kept[key].times -= times
