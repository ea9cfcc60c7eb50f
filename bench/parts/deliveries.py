"""Deliveries a second, with their history, beside what else a Python team would use.

Each contender finds its whole work waiting, and is measured from the first POST that arrives until
the last thing it writes: for the service and for Celery that is history, for the others the last
POST. They take turns, so that a busy machine is unfair to all of them.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.figures import Bound, Figure, Reach, median, number
from bench.lab import Lab
from bench.parts.peers import Peers
from bench.scale import Scale
from bench.service import Tenant

_BATCH = 500
_DONE_SECONDS = 120.0

# Each peer with what the service is to reach beside it.
_PEERS = {
    "bare actor": 1.5,
    "Celery, same writes": 2.5,
    "bare loop": 0.75,
}


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure the service and its peers in turns."""
    tenant = lab.service.new_tenant()
    ours = _Ours(lab, tenant, tenant.webhook(lab.receiver.url()), scale.deliveries)
    ours.warm_up()
    peers = Peers(lab, ours.payload(), scale.deliveries // 2)
    threads = peers.best_threads(scale.threads_tried)
    drained, posted = [], []
    bounds: dict[str, list[float]] = {name: [] for name in _PEERS}
    for _ in range(scale.rounds):
        drained.append(ours.drained())
        bounds["bare actor"].append(peers.actor(threads))
        bounds["Celery, same writes"].append(peers.celery())
        bounds["bare loop"].append(peers.loop())
        posted.append(ours.posted())
    spread = f"rounds {number(min(drained))} to {number(max(drained))}"
    for name, least in _PEERS.items():
        words = f"{name} (2 processes with {threads} threads)" if name == "bare actor" else name
        bound = Bound(words, median(bounds[name]))
        reach = Reach(at_least=least, of_ratio=True)
        yield Figure("deliveries", "deliveries", median(drained), "/s", bound, reach, spread)
    yield Figure(
        "deliveries",
        "deliveries, from the first finding posted to the last outcome written",
        median(posted),
        "/s",
    )
    tenant.ask("DELETE", ours.webhook)


@dataclass
class _Ours:
    """The service with one webhook."""

    lab: Lab
    tenant: Tenant
    webhook: str
    count: int

    def warm_up(self) -> None:
        """Deliver a little, so that the receiver counts as proven."""
        self.tenant.post(self.tenant.findings(connections=2, batch=50, count=4))
        self.tenant.wait_until_closed(self.webhook, _DONE_SECONDS)

    def payload(self) -> bytes:
        """Return a body as receivers get it."""
        newest = self.tenant.ask("GET", f"{self.webhook}/deliveries?limit=1")["data"][0]
        found = self.tenant.ask("GET", f"{self.webhook}/deliveries/{newest['id']}")
        return json.dumps(found["payload"], separators=(",", ":")).encode()

    def drained(self) -> float:
        """Deliver what has gathered while no worker ran."""
        self.lab.service.stop_role("worker")
        self._post()
        before = self.lab.receiver.count()
        self.lab.service.start_role("worker")
        began = self.lab.receiver.time_of(before + 1, _DONE_SECONDS)
        return self._rate_since(began)

    def posted(self) -> float:
        """Deliver while findings are being posted, in batches."""
        self.lab.service.wait_until_up()
        began = time.time()
        self._post()
        return self._rate_since(began)

    def _post(self) -> None:
        batches = self.count // _BATCH
        self.tenant.post(self.tenant.findings(connections=2, batch=_BATCH, count=batches))

    def _rate_since(self, began: float) -> float:
        self.tenant.wait_until_closed(self.webhook, _DONE_SECONDS)
        return self.count / (time.time() - began)
