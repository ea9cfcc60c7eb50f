"""The timetable: the actors that the clock rings, with their periods.

An entry's times are multiples of its period since the epoch, plus an offset: UTC, without drift. A
ring has no arguments; the actor queries the database for due work, so ringing twice or late does no
harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the timetable: an actor, its period, and the offset from its multiples, in s.

    `name` is the actor's, the entry's id in Redis and the NAME of `make now`.
    """

    name: str
    every: int
    offset: int = 0

    @property
    def max_age(self) -> int | None:
        """Seconds after which a queued ring expires; the next does its work. None: never."""
        return None if self.every >= _DAY else max(self.every, 5)

    def next_after(self, moment: float) -> int:
        """Return the entry's first time after `moment`; both are seconds since the epoch."""
        return int((moment - self.offset) // self.every + 1) * self.every + self.offset


TIMETABLE: Final[Mapping[str, Entry]] = {
    entry.name: entry
    for entry in (
        Entry("sweep", every=1),
        # The sweep rings it each second while leaves wait; this compares the log with its head.
        Entry("integrate", every=10),
        Entry("index_words", every=10),
        # The sweep rings it each second while traces are due.
        Entry("assemble", every=30),
        Entry("free_stuck_jobs", every=_MINUTE),
        Entry("look_at_backlog", every=_MINUTE),
        Entry("complete_idle_sessions", every=_MINUTE),
        Entry("send_alerts", every=_MINUTE, offset=15),
        Entry("send_digests", every=_MINUTE),
        Entry("figure_tenants", every=5 * _MINUTE, offset=75),
        Entry("check_master_keys", every=_MINUTE),
        Entry("reseal", every=_HOUR),
        Entry("expire_bundles", every=5 * _MINUTE),
        # After prune_history, which drops the events.
        Entry("expire_findings", every=_DAY, offset=3 * _HOUR + 37 * 60),
        Entry("archive_audit", every=_DAY, offset=_HOUR + 27 * 60),
        Entry("tend_objects", every=_MINUTE, offset=15),
        Entry("sweep_objects", every=_DAY, offset=2 * _HOUR + 7 * 60),
        Entry("anchor_audit", every=10 * _MINUTE),
        # A minute after anchor_audit, when the anchored heads are in a checkpoint.
        Entry("stamp_checkpoint", every=10 * _MINUTE, offset=_MINUTE),
        # Between two of stamp_checkpoint's, which asks for one checkpoint with both.
        Entry("cosign_checkpoint", every=_MINUTE, offset=30),
        Entry("verify_audit", every=_DAY, offset=4 * _HOUR + 43 * 60),
        Entry("prune_history", every=_DAY, offset=3 * _HOUR + 17 * 60),
    )
}
