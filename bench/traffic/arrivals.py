"""When findings reached the receiver, held against when they were posted and answered."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from bench.processes import BenchError
from bench.traffic.load import Answer
from bench.traffic.receiver import Receiver

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Way:
    """One finding's way, as moments in seconds since the epoch, all by this machine's clock."""

    due: float
    answered: float
    event: float
    arrival: float

    @property
    def since_event_ms(self) -> float:
        """From the event's own time, inside the transaction, to the receiver's first byte."""
        return (self.arrival - self.event) * 1000

    @property
    def since_answer_ms(self) -> float:
        """From the answer to the POST, which comes after the commit; negative if it came later."""
        return (self.arrival - self.answered) * 1000

    @property
    def since_due_ms(self) -> float:
        """From the moment when the finding was to be posted."""
        return (self.arrival - self.due) * 1000


def collect(receiver: Receiver, answers: Sequence[Answer], seconds: float) -> list[Way]:
    """Wait until every answered finding has arrived; raises `BenchError` after `seconds`.

    A finding's `rule` is its number. What arrives twice counts when it came first.
    """
    wanted = {each.number: each for each in answers}
    ways: dict[int, Way] = {}
    deadline = time.monotonic() + seconds
    while len(ways) < len(wanted):
        if time.monotonic() > deadline:
            missing = len(wanted) - len(ways)
            raise BenchError(f"{missing} of {len(wanted)} findings not within {seconds:g} s")
        for arrival in receiver.arrivals():
            number = int(arrival["rule"])
            if number in wanted:
                ways.setdefault(number, _way(wanted[number], arrival))
        time.sleep(_POLL_SECONDS)
    return list(ways.values())


def _way(answer: Answer, arrival: Mapping[str, str | float]) -> Way:
    event = datetime.fromisoformat(str(arrival["event"])).timestamp()
    return Way(answer.due, answer.answered, event, float(arrival["arrival"]))
