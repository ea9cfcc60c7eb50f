"""The timetable: which actor the clock rings, and when.

An entry's times are multiples of its period since the epoch, plus an offset: UTC, without drift. A
ring has no arguments; the actor asks the database what is due, so ringing twice or late does no
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
    """One line of the timetable."""

    # Wire format: the entry's id in Redis and the NAME of `make now`. Letters, digits, - and _.
    name: str
    actor: str
    # Seconds from one ring to the next, and how long after a multiple of them it rings.
    every: int
    offset: int = 0
    # Seconds after which a ring that no worker took is dropped; the next one does its work.
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
        # The sweep rings it each second while leaves wait; this holds the log against its head.
        Entry("integrate", actor="integrate", every=10, max_age=10),
        Entry("index_findings", actor="index_findings", every=10, max_age=10),
        Entry("free_stuck_jobs", actor="free_stuck_jobs", every=_MINUTE, max_age=_MINUTE),
        Entry("send_digests", actor="send_digests", every=_MINUTE, max_age=_MINUTE),
        Entry("check_master_keys", actor="check_master_keys", every=_MINUTE, max_age=_MINUTE),
        Entry("expire_bundles", actor="expire_bundles", every=5 * _MINUTE, max_age=5 * _MINUTE),
        Entry("anchor_audit", actor="anchor_audit", every=10 * _MINUTE, max_age=10 * _MINUTE),
        # A minute later: by then the heads that were just anchored are in a checkpoint.
        Entry(
            "stamp_checkpoint",
            actor="stamp_checkpoint",
            every=10 * _MINUTE,
            offset=_MINUTE,
            max_age=10 * _MINUTE,
        ),
        Entry("verify_audit", actor="verify_audit", every=_DAY, offset=4 * _HOUR + 43 * 60),
        Entry("prune_history", actor="prune_history", every=_DAY, offset=3 * _HOUR + 17 * 60),
    ]
)
