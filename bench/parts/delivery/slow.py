"""Slow receivers: how near a backlog comes to `max_in_flight` POSTs at once.

Each answers well after so many seconds, and 200 events wait on its webhook, whose `max_in_flight`
is 16. The ideal is 16 POSTs out all the time. Then the same beside a tenant whose webhooks all
answer after 14.5 s, and another whose webhooks hang.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from bench.figures import Bound, Figure, Reach, percentile
from bench.lab import Lab
from bench.parts.delivery.neighbours import wait_until_quiet
from bench.processes import until
from bench.scale import Scale
from bench.service import Tenant
from bench.traffic.arrivals import collect

MOST = 16
_WAITING = 200
_LEARNED = 10
_WARM_UP = 60
_SPARE_SECONDS = 60.0
# Beside others.
_SECONDS = 1.2
_CROWDED_SECONDS = 14.5
_WAITING_ON_EACH = 20
_HANGING = 60
_OUT_AT_LEAST = 30
_SAMPLES = 100
_RATE = 10.0
_FIRST_SAMPLE = 1_000_000

_paths = itertools.count()


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure known receivers, a new one, and one beside others."""
    tenant = lab.service.new_tenant()
    for seconds in scale.slow_seconds:
        slow = _Slow(lab, tenant)
        slow.warm_up()
        yield from slow.figures(f"{seconds:g} s", seconds)
    seconds = _SECONDS if _SECONDS in scale.slow_seconds else scale.slow_seconds[0]
    new = _Slow(lab, tenant)
    yield from new.figures(f"{seconds:g} s, new, from its tenth answer", seconds, _LEARNED)
    yield from _beside_others(lab, scale)


class _Slow:
    """A webhook at a receiver whose pace can be set."""

    def __init__(self, lab: Lab, tenant: Tenant) -> None:
        self._lab = lab
        self._tenant = tenant
        self._name = f"slow{next(_paths)}"
        self.webhook = tenant.webhook(lab.receiver.pace(self._name, 0.0), max_in_flight=MOST)

    def warm_up(self) -> None:
        """Have some answered at once."""
        self.send(_WARM_UP)
        self.wait_for(_WARM_UP, _SPARE_SECONDS)

    def send(self, count: int, seconds: float = 0.0) -> None:
        """Have `count` events wait at once on a receiver that answers after `seconds`."""
        self._lab.receiver.pace(self._name, seconds)
        plan = self._tenant.findings(connections=1, batch=count // 2, count=2)
        self._tenant.post(plan)

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until so many were answered."""
        until(
            lambda: len(self._lab.receiver.crowd(self._name)["answered"]) >= count,
            seconds,
            f"{count} slow answers",
        )

    def finish(self, seconds: float, learned: int = 0) -> tuple[float, int]:
        """Wait for all; return answers a second, from one of them on, and the most POSTs out."""
        self.wait_for(_WAITING, 2 * _WAITING * seconds / MOST * 4 + _SPARE_SECONDS)
        crowd = self._lab.receiver.crowd(self._name)
        answered = crowd["answered"]
        began = answered[learned - 1] if learned else crowd["began"]
        return (len(answered) - learned) / (answered[-1] - began), crowd["most"]

    def figures(self, what: str, seconds: float, learned: int = 0) -> Iterator[Figure]:
        """Measure, and delete the webhook."""
        self.send(_WAITING, seconds)
        rate, most = self.finish(seconds, learned)
        ideal = Bound(f"{MOST} at once", MOST / seconds)
        reach = Reach(at_least=0.8, of_ratio=True)
        name = f"{_WAITING} events, a receiver of {what}"
        yield Figure(name, rate, "/s", ideal, reach)
        yield Figure(f"{name}, POSTs out at most", most, "", reach=Reach(at_most=MOST))
        self._tenant.ask("DELETE", self.webhook)


def _beside_others(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure a tenant with a quick and a slow webhook, alone and while others fill the places."""
    tenant = lab.service.new_tenant()
    alone, _ = _together(lab, tenant)
    crowd = _Crowd(lab, scale.slow_webhooks)
    beside, ways = _together(lab, tenant)
    crowd.end()
    what = f"{scale.slow_webhooks} of {_CROWDED_SECONDS:g} s and {_HANGING} that hang"
    yield Figure(
        f"a receiver of {_SECONDS:g} s beside {what}",
        beside,
        "/s",
        Bound("alone", alone),
        Reach(at_least=0.5, of_ratio=True),
    )
    for percent, word in ((50, "p50"), (100, "worst")):
        name = f"a quick webhook beside {what}, {word}"
        yield Figure(name, percentile(ways, percent), " ms", reach=Reach(at_most=300))


def _together(lab: Lab, tenant: Tenant) -> tuple[float, list[float]]:
    """Return a slow webhook's answers a second, and a quick one's milliseconds at the same time."""
    quick = tenant.webhook(lab.receiver.url("/stamp"))
    slow = _Slow(lab, tenant)
    slow.warm_up()
    slow.send(_WAITING - _SAMPLES, _SECONDS)
    tenant.wait_until_closed(quick, _SPARE_SECONDS)
    lab.receiver.arrivals()
    plan = tenant.findings(connections=2, count=_SAMPLES, rate=_RATE)
    answers = tenant.post(replace(plan, first=_FIRST_SAMPLE)).answers
    ways = [way.since_due_ms for way in collect(lab.receiver, answers, _SPARE_SECONDS)]
    rate, _ = slow.finish(_SECONDS)
    for webhook in (quick, slow.webhook):
        tenant.ask("DELETE", webhook)
    return rate, ways


class _Crowd:
    """Two other tenants: all webhooks of one answer after 14.5 s, all of the other hang."""

    def __init__(self, lab: Lab, slow: int) -> None:
        self._lab = lab
        self._webhooks: list[tuple[Tenant, str]] = []
        self._add(lab.receiver.pace("crowd", _CROWDED_SECONDS), slow)
        self._add(lab.receiver.url("/hang"), _HANGING)
        until(lambda: lab.receiver.crowd("crowd")["out"] >= _OUT_AT_LEAST, 60.0, "a crowd")

    def end(self) -> None:
        """Delete their webhooks, and wait until no worker is held by them."""
        for tenant, webhook in self._webhooks:
            tenant.ask("DELETE", webhook)
        wait_until_quiet(self._lab)

    def _add(self, url: str, webhooks: int) -> None:
        tenant = self._lab.service.new_tenant()
        self._webhooks += [(tenant, tenant.webhook(url)) for _ in range(webhooks)]
        tenant.post(tenant.findings(connections=1, batch=_WAITING_ON_EACH, count=1))
