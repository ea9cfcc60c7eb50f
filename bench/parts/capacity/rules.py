"""Rules: what ten cost a record's answer, how many records they judge, and a hostile neighbour."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sqlalchemy import text

from bench.figures import Bound, Figure, Reach, median
from bench.lab import Lab
from bench.pace import middle
from bench.processes import BenchError, until
from bench.scale import Scale
from bench.service import Tenant

_CONNECTIONS = 16
_WARM_UP_SECONDS = 1.0
_DRAIN_SECONDS = 120.0
_SEEN_SECONDS = 30.0
_POLL_SECONDS = 0.01
_RULES = [
    *(("record", f"record.kind == 'kind {n}' && steps.size() > {n}") for n in range(4)),
    ("record", "steps.exists(s, s.status == 'error')"),
    *(("step", f"step.status == 'error' && step.attributes.rows > {n}") for n in range(4)),
    ("step", "'enduser.id' in step.attributes && step.attributes['enduser.id'] != 'bench'"),
]
# Each takes all that the evaluator allows, or all but.
_HOSTILE = (
    "content.l.exists(a, content.l.exists(b, a == b + 1000000))",
    "content.l.map(a, content.x.replace('x', 'y')).size() == 1",
    "content.l.all(a, content.x.matches('(x|x)*y' + text(a)) == false)",
    "content.l.exists(a, text(content).contains('no' + text(a)))",
)


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure the three."""
    plain, ruled = lab.service.new_tenant(), lab.service.new_tenant()
    _add(ruled, _RULES)
    lab.service.stop_role("worker")
    yield from _accept(lab, plain, ruled, scale)
    while _waiting(lab) < scale.findings:
        lab.load.drive(ruled.records(connections=_CONNECTIONS, seconds=scale.seconds))
    yield _drain(lab)
    yield from _beside_hostile(lab, scale)


def _accept(lab: Lab, plain: Tenant, ruled: Tenant, scale: Scale) -> Iterator[Figure]:
    """Post records without rules and with ten, in turns."""
    pid = lab.service.running["web"].pid
    plans = [
        tenant.records(connections=_CONNECTIONS, seconds=scale.seconds) for tenant in (plain, ruled)
    ]
    for plan in plans:
        lab.drive(replace(plan, seconds=_WARM_UP_SECONDS))
    paces = [[lab.paced(plan, pid) for plan in plans] for _ in range(scale.rounds)]
    alone, under = map(middle, zip(*paces, strict=True))
    bound, beside = (Bound("without rules", each) for each in (alone.per_second, alone.cpu_each))
    least = Reach(at_least=0.95, of_ratio=True)
    yield Figure("records accepted under ten rules", under.per_second, "/s", bound, least)
    yield Figure("CPU of a record under ten rules", under.cpu_each, " µs", beside)


def _drain(lab: Lab) -> Figure:
    """Start the worker before a backlog, and time it from the first verdict to the last."""
    lab.service.start_role("worker")
    backlog = _waiting(lab)
    until(lambda: _waiting(lab) < backlog, _DRAIN_SECONDS, "the first verdict")
    began, first = time.monotonic(), _waiting(lab)
    until(lambda: _waiting(lab) == 0, _DRAIN_SECONDS, "the last verdict")
    rate = first / (time.monotonic() - began)
    return Figure("records judged by ten rules", rate, "/s", reach=Reach(at_least=2_000))


def _beside_hostile(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Time a tenant's finding from its record while others' rules take all they can."""
    victims = [lab.service.new_tenant() for _ in _HOSTILE]
    good = lab.service.new_tenant()
    _add(good, [("record", "content.mark > 0")])
    big = {"l": list(range(50_000)), "x": "x" * 400_000}
    for tenant, when in zip(victims, _HOSTILE, strict=True):
        _add(tenant, [("record", when)])
        for _ in range(6):
            tenant.ask("POST", "/v1/records", tenant.record_body() | {"content": big})
    taken = []
    for mark in range(1, max(8, scale.samples // 10)):
        began = time.monotonic()
        body = good.record_body() | {"content": {"mark": mark}}
        record = good.ask("POST", "/v1/records", body)["id"]
        while not good.ask("GET", f"/v1/findings?record_id={record}")["data"]:
            if time.monotonic() > began + _SEEN_SECONDS:
                raise BenchError("no finding beside hostile rules")
            time.sleep(_POLL_SECONDS)
        taken.append(time.monotonic() - began)
        # What is switched off is switched on again, so that all goes on.
        for tenant in victims:
            _renew(tenant, big)
    words = "a finding beside four hostile tenants, from its record"
    yield Figure(f"{words}, half of them", median(taken), " s")
    yield Figure(f"{words}, the slowest", max(taken), " s", reach=Reach(at_most=2.0))


def _renew(tenant: Tenant, content: Any) -> None:
    for rule in tenant.ask("GET", "/v1/rules")["data"]:
        if not rule["enabled"]:
            tenant.ask("PATCH", f"/v1/rules/{rule['id']}", {"enabled": True})
            tenant.ask("POST", "/v1/records", tenant.record_body() | {"content": content})


def _add(tenant: Tenant, rules: list[tuple[str, str]]) -> None:
    for number, (on, when) in enumerate(rules):
        body = {"name": f"rule {number}", "on": on, "when": when, "severity": "low", "title": "t"}
        tenant.ask("POST", "/v1/rules", body | {"enabled": True})


def _waiting(lab: Lab) -> int:
    with lab.service.database.across_tenants() as session:
        return int(session.scalar(text("SELECT count(*) FROM rule_work")) or 0)
