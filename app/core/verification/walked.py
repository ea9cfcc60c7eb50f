"""How far the log was walked: what the daily verification found good is not walked again.

What grew since is walked, and the signed root at its end proves the tree before it. A sealed note
says how far. All is walked each week, whenever a break is open, and on command; a walk that is
killed goes on where its last part ended.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.verification import alerts, sealed_notes
from app.database import Database
from app.ledger.tiles import WIDTH
from app.lib.crypto.sealing import MasterKeys

FULL_EVERY = timedelta(days=7)
"""What the tree cannot prove (a chain that was cut, or lost its tenant) is found within so long."""

NOTE = "walked_log"
PART_LEAVES = 1_000_000
"""A killed walk of all loses so many leaves."""


@dataclass
class Walked:
    """A run's share of the walk: where it begins in each log, by origin, and how far it has come.

    `full` since when, if it walks everything.
    """

    database: Database
    master_keys: MasterKeys
    before: Mapping[str, Any] | None
    begins: Mapping[str, int]
    full: str | None
    reached: dict[str, int] = field(default_factory=dict)
    leaves: int = 0

    @classmethod
    def plan(cls, database: Database, master_keys: MasterKeys, now: datetime) -> "Walked":
        """Read how far the last runs came, and decide what this one walks."""
        with database.across_tenants() as session:
            note = sealed_notes.read(session, master_keys, NOTE)
            doubted = alerts.count_open(session) > 0
        # A killed walk's too: whoever owns the database may put back any note that was sealed.
        if note is None or doubted or not _is_recent(now - datetime.fromisoformat(note["full"])):
            return cls(database, master_keys, note, {}, rfc3339(now))
        begun = note.get("walking")
        if begun is not None:
            return cls(database, master_keys, note, begun["logs"], begun["since"])
        return cls(database, master_keys, note, note["logs"], None)

    def begin(self, origin: str, size: int) -> int:
        """Return at which leaf to begin in a log of this size: a tile's first, and one there is."""
        known = self.begins.get(origin, 0)
        return min(known, size - 1) // WIDTH * WIDTH if 0 < known <= size else 0

    def come_to(self, origin: str, size: int, leaves: int, is_clean: Callable[[], bool]) -> None:
        """Note that a log was read up to `size`; keep that now and then, while all is well."""
        due = self.leaves // PART_LEAVES < (self.leaves + leaves) // PART_LEAVES
        self.leaves += leaves
        self.reached[origin] = size
        if self.full is not None and due and is_clean():
            logs = {**self.begins, **self.reached}
            kept = {"logs": {}, "full": self.full, "walking": {"logs": logs, "since": self.full}}
            self._write(kept)

    def end(self, *, good: bool) -> None:
        """Keep how far the log is verified, or that it has to be walked as a whole next time."""
        if not good:
            with self.database.across_tenants() as session:
                forget(session, self.master_keys)
            return
        full = self.full or (self.before or {}).get("full")
        self._write({"logs": self.reached, "full": full})

    def _write(self, note: dict[str, Any]) -> None:
        """Keep a note, unless an operator asked for a walk of everything meanwhile."""
        with self.database.across_tenants() as session:
            if sealed_notes.read(session, self.master_keys, NOTE) == self.before:
                sealed_notes.write(session, self.master_keys, NOTE, note)
                self.before = note


def _is_recent(age: timedelta) -> bool:
    # A note of the future was sealed while the clock was wrong.
    return timedelta(0) <= age < FULL_EVERY


def forget(session: Session, master_keys: MasterKeys) -> None:
    """Have the next run walk everything, from the first leaf."""
    sealed_notes.write(session, master_keys, NOTE, None)
