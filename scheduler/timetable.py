"""The timetable: the actors that the clock rings, with their periods.

An entry's times are multiples of its period since the epoch, plus an offset: UTC, without drift. A
ring has no arguments; the actor queries the database for due work, so ringing twice or late does no
harm.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the timetable."""

    # Wire format: the entry's id in Redis and the NAME of `make now`. Letters, digits, - and _.
    name: str
    actor: str
    # Period in seconds, and the offset in seconds from its multiples.
    every: int
    offset: int = 0
    # Seconds after which a queued ring expires; the next one does its work.
    max_age: int | None = None

    def next_after(self, moment: float) -> int:
        """Return the entry's first time after `moment`; both are seconds since the epoch."""
        return int((moment - self.offset) // self.every + 1) * self.every + self.offset


def by_name(entries: Iterable[Entry]) -> Mapping[str, Entry]:
    """Return the entries by their names."""
    return {entry.name: entry for entry in entries}


TIMETABLE: Final = by_name(
    [
        Entry("sweep", actor="sweep", every=1, max_age=5),
        # The sweep rings it each second while leaves wait; this compares the log with its head.
        Entry("integrate", actor="integrate", every=10, max_age=10),
        Entry("index_words", actor="index_words", every=10, max_age=10),
        # The sweep rings it each second while traces are due.
        Entry("assemble", actor="assemble", every=30, max_age=30),
        Entry("free_stuck_jobs", actor="free_stuck_jobs", every=_MINUTE, max_age=_MINUTE),
        Entry("look_at_backlog", actor="look_at_backlog", every=_MINUTE, max_age=_MINUTE),
        Entry(
            "complete_idle_sessions",
            actor="complete_idle_sessions",
            every=_MINUTE,
            max_age=_MINUTE,
        ),
        Entry("send_alerts", actor="send_alerts", every=_MINUTE, offset=15, max_age=_MINUTE),
        Entry("send_digests", actor="send_digests", every=_MINUTE, max_age=_MINUTE),
        Entry("figure_tenants", actor="figure_tenants", every=5 * _MINUTE, offset=75, max_age=120),
        Entry("check_master_keys", actor="check_master_keys", every=_MINUTE, max_age=_MINUTE),
        Entry("reseal", actor="reseal", every=_HOUR, max_age=_HOUR),
        Entry("expire_bundles", actor="expire_bundles", every=5 * _MINUTE, max_age=5 * _MINUTE),
        # After prune_history, which drops the events.
        Entry("expire_findings", actor="expire_findings", every=_DAY, offset=3 * _HOUR + 37 * 60),
        Entry("archive_audit", actor="archive_audit", every=_DAY, offset=_HOUR + 27 * 60),
        Entry("tend_objects", actor="tend_objects", every=_MINUTE, offset=15, max_age=_MINUTE),
        Entry("sweep_objects", actor="sweep_objects", every=_DAY, offset=2 * _HOUR + 7 * 60),
        Entry("anchor_audit", actor="anchor_audit", every=10 * _MINUTE, max_age=10 * _MINUTE),
        # A minute after anchor_audit, when the anchored heads are in a checkpoint.
        Entry(
            "stamp_checkpoint",
            actor="stamp_checkpoint",
            every=10 * _MINUTE,
            offset=_MINUTE,
            max_age=10 * _MINUTE,
        ),
        # Between two of stamp_checkpoint's, which asks for one checkpoint with both.
        Entry("cosign_checkpoint", actor="cosign_checkpoint", every=_MINUTE, offset=30, max_age=30),
        Entry("verify_audit", actor="verify_audit", every=_DAY, offset=4 * _HOUR + 43 * 60),
        Entry("prune_history", actor="prune_history", every=_DAY, offset=3 * _HOUR + 17 * 60),
    ]
)
