"""What a finding costs with 1, 10 and 100 webhooks that match: a row of a delivery for each."""

from collections.abc import Iterator
from dataclasses import replace

from bench.figures import Bound, Figure, Reach
from bench.lab import Lab
from bench.scale import Scale

_CONNECTIONS = 16
# How many webhooks match, and what part of all findings is posted then.
_FANS = {1: 1, 10: 2, 100: 10}
# A webhook more costs the same whether few match or many.
_LINEAR = Reach(at_most=1.5, of_ratio=True)


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure single findings with each number of webhooks, while no worker runs."""
    lab.service.wait_until_up()
    lab.service.stop_role("worker")
    costs: dict[int, float] = {}
    for fan, part in _FANS.items():
        tenant = lab.service.new_tenant()
        webhooks = [tenant.webhook(lab.receiver.url()) for _ in range(fan)]
        plan = tenant.findings(connections=_CONNECTIONS, count=scale.findings // part)
        tenant.post(replace(plan, count=scale.findings // part // 5, first=1_000_000))
        pace = lab.paced(plan, lab.service.running["web"].pid)
        costs[fan] = pace.cpu_each
        words = f"a finding with {fan} webhook{'s' if fan > 1 else ''}"
        yield Figure(f"{words}, accepted", pace.per_second, "/s")
        yield Figure(f"CPU of {words}, stores included", costs[fan], " µs")
        for webhook in webhooks:
            tenant.ask("DELETE", webhook)
    few, many = (costs[10] - costs[1]) / 9, (costs[100] - costs[10]) / 90
    bound = Bound("from 1 to 10", few)
    yield Figure("CPU of one webhook more, from 10 to 100", many, " µs", bound, _LINEAR)
    lab.service.start_role("worker")
    lab.service.wait_until_up()
