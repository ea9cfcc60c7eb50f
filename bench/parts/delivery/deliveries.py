"""Deliveries a second, with their history, beside what else a Python team would use.

Each contender finds all its work waiting. It is measured from the first POST that arrives until
its last write: history for the service and for Celery, the last POST for the others. They take
turns, so that a busy machine affects all.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Bound, Figure, Reach, median, number
from bench.lab import Lab
from bench.pace import Pace, Stopwatch, middle
from bench.peers.runner import Peers
from bench.scale import Scale
from bench.service import Tenant
from bench.traffic.receiver import Receiver

_BATCH = 500
_DONE_SECONDS = 120.0

# What the service is to reach beside the actor, Celery and the loop.
_LEAST = (1.5, 2.5, 0.75)


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure the service and its peers in turns."""
    tenant = lab.service.new_tenant()
    webhook = tenant.webhook(lab.receiver.url())
    ours = Ours(lab, tenant, webhook, scale.deliveries, lab.receiver)
    ours.warm_up()
    peers = Peers(lab, ours.payload(), scale.deliveries // 2)
    threads = peers.best_threads(scale.threads_tried)
    posted = []
    contenders: dict[str, Callable[[], Pace]] = {
        "deliveries": ours.drained,
        f"bare actor (2 processes with {threads} threads)": lambda: peers.actor(threads),
        "Celery, same writes": peers.celery,
        "bare loop": peers.loop,
    }
    paces: dict[str, list[Pace]] = {name: [] for name in contenders}
    for _ in range(scale.rounds):
        for name, work in contenders.items():
            paces[name].append(work())
        posted.append(ours.posted().per_second)
    yield from _figures(paces)
    words = "deliveries, from the first finding posted to the last outcome written"
    yield Figure(words, median(posted), "/s")
    tenant.ask("DELETE", ours.webhook)


def _figures(paces: Mapping[str, Sequence[Pace]]) -> Iterator[Figure]:
    ours, *peers = paces
    rates = [pace.per_second for pace in paces[ours]]
    spread = f"rounds {number(min(rates))} to {number(max(rates))}"
    mine = middle(paces[ours])
    for peer, least in zip(peers, _LEAST, strict=True):
        bound, reach = middle(paces[peer]), Reach(at_least=least, of_ratio=True)
        rate = Bound(peer, bound.per_second)
        yield Figure(ours, mine.per_second, "/s", rate, reach, spread)
    for peer in peers:
        cost = Bound(peer, middle(paces[peer]).cpu_each)
        yield Figure("CPU of a delivery, stores included", mine.cpu_each, " µs", cost)


@dataclass
class Ours:
    """The service with one webhook, to which so many deliveries go."""

    lab: Lab
    tenant: Tenant
    webhook: str
    count: int
    receiver: Receiver

    def warm_up(self) -> None:
        """Deliver a little, so that the receiver is known."""
        self.tenant.post(self.tenant.findings(connections=2, batch=50, count=4))
        self.tenant.wait_until_closed(self.webhook, _DONE_SECONDS)

    def payload(self) -> bytes:
        """Return a body as receivers get it."""
        newest = self.tenant.ask("GET", f"{self.webhook}/deliveries?limit=1")["data"][0]
        found = self.tenant.ask("GET", f"{self.webhook}/deliveries/{newest['id']}")
        return json.dumps(found["payload"], separators=(",", ":")).encode()

    def drained(self) -> Pace:
        """Deliver what has gathered while no worker ran."""
        self.lab.service.stop_role("worker")
        self._post()
        arrived = self.receiver.count()
        self.lab.service.start_role("worker")
        self.receiver.wait_for(arrived + 1, _DONE_SECONDS)
        return self._finish(self._watch(), arrived)

    def posted(self) -> Pace:
        """Deliver while findings are being posted, in batches."""
        self.lab.service.wait_until_up()
        arrived = self.receiver.count()
        watch = self._watch()
        self._post()
        return self._finish(watch, arrived)

    def _post(self) -> None:
        batches = self.count // _BATCH
        self.tenant.post(self.tenant.findings(connections=2, batch=_BATCH, count=batches))

    def _watch(self) -> Stopwatch:
        service = [process.pid for process in self.lab.service.running.values()]
        return Stopwatch([*service, *self.lab.store_pids().values()])

    def _finish(self, watch: Stopwatch, arrived: int) -> Pace:
        # Asking for the accounting costs more than asking the receiver.
        self.receiver.wait_for(arrived + self.count, _DONE_SECONDS)
        self.tenant.wait_until_closed(self.webhook, _DONE_SECONDS)
        return watch.stop(self.count)
