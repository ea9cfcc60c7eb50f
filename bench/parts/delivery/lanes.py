"""One webhook with one lane and with eight: of a quick receiver, and of one that takes its time."""

from collections.abc import Iterator

from bench.figures import Bound, Figure
from bench.lab import Lab
from bench.pace import middle
from bench.parts.delivery.deliveries import Ours
from bench.scale import Scale

_LANES = (1, 8)
_SESSIONS = 64
_SECONDS = 0.05
# Few enough that the receiver's time bounds one lane.
_IN_FLIGHT = 8


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Deliver the same backlog by one lane and by eight."""
    slow = lab.receiver.pace("lanes", _SECONDS)
    quick, rounds = lab.receiver.url(), scale.rounds
    yield from _compared(lab, rounds, scale.deliveries, quick, "a quick receiver", 64)
    words = f"a receiver of {_SECONDS * 1000:.0f} ms, {_IN_FLIGHT} POSTs a lane"
    yield from _compared(lab, 1, scale.deliveries // 2, slow, words, _IN_FLIGHT)


def _compared(
    lab: Lab, rounds: int, count: int, url: str, words: str, in_flight: int
) -> Iterator[Figure]:
    one: Bound | None = None
    for lanes in _LANES:
        tenant = lab.service.new_tenant()
        tenant.spread(_SESSIONS)
        webhook = tenant.webhook(url, lanes=lanes, max_in_flight=in_flight)
        ours = Ours(lab, tenant, webhook, count, lab.receiver)
        ours.warm_up()
        pace = middle([ours.drained() for _ in range(rounds)])
        name = f"deliveries by {lanes} lane{'s' if lanes > 1 else ''}, {words}"
        yield Figure(name, pace.per_second, "/s", one)
        one = Bound("one lane", pace.per_second)
        tenant.ask("DELETE", webhook)
