"""The gauges of `/metrics`, each family with its name and its help text.

Alerts and dashboards depend on the names: add, never rename.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from app import ids
from app.core.health.gauges import Gauges
from app.core.health.lane_figures import FailingWebhook, LaneFigures
from app.core.health.log_figures import LogFigures
from app.errors import LogHalted
from app.heartbeats import Process

_PREFIX = "record_service"
# Shown as 0 while the log is in order: an alert must not wait for a series to begin.
_TROUBLES = tuple(sorted({each.slug for each in LogHalted.__subclasses__()}))


def totals(now: Gauges) -> Iterator[Metric]:
    """Yield the totals of the whole stack: due, paused, disabled, dead or broken."""
    for name, what, value in (
        ("lanes_due", "Lanes with something to send now.", now.lanes_due),
        ("lanes_overdue", "Lanes with something to send for over a minute.", now.lanes_overdue),
        ("lanes_paused", "Lanes that wait because their receiver failed.", now.lanes_paused),
        ("oldest_due_seconds", "How long the longest due lane has been due.", now.oldest_due),
        ("oldest_job_due_seconds", "How long the longest due job is due.", now.oldest_job_due),
        ("oldest_digest_seconds", "Age of the oldest open digest.", now.oldest_digest),
        ("unanchored", "Parts of anchoring that fail.", now.unanchored),
        ("witness_alarms", "Witnesses that saw another log of our name.", now.anchoring_alarms),
        ("unanchored_seconds", "How long the oldest of them has failed.", now.oldest_unanchored),
        (
            "checkpoint_waiting_seconds",
            "How long a signed checkpoint has waited for its quorum of witnesses.",
            now.oldest_candidate,
        ),
        ("audit_chains_broken_now", "Tenants whose audit chain is broken.", now.chains_broken),
        ("audit_chains_unknown", "Chains in the log that no tenant has.", now.chains_unknown),
        (
            "logs_unverified",
            "1 while the stored log does not match the published log.",
            now.logs_unverified,
        ),
    ):
        yield _gauge(name, what, value)
    webhooks = _family("webhooks", "Webhooks by status.", "status")
    webhooks.add_metric(["enabled"], now.webhooks - now.webhooks_disabled)
    webhooks.add_metric(["disabled"], now.webhooks_disabled)
    yield webhooks
    jobs = _family("jobs", "Jobs that are open, or dead.", "status")
    jobs.add_metric(["queued"], now.jobs_queued)
    jobs.add_metric(["running"], now.jobs_running)
    jobs.add_metric(["retrying"], now.jobs_retrying)
    jobs.add_metric(["dead"], now.jobs_dead)
    yield jobs


def release(version: str) -> Iterator[Metric]:
    """Yield the release of the process that answers."""
    yield InfoMetricFamily(f"{_PREFIX}_release", "The release that answers.", {"version": version})


def verification(unverified: float) -> Iterator[Metric]:
    """Yield for how many seconds no run has verified all audit chains."""
    text = "How long no run has verified all audit chains."
    yield _gauge("audit_unverified_seconds", text, unverified)


def master_keys(missing: int) -> Iterator[Metric]:
    """Yield how many master keys are in use that MASTER_KEYS lacks."""
    text = "Keys that may have sealed something and are not in MASTER_KEYS."
    yield _gauge("master_keys_missing", text, missing)


def digests(refused: Mapping[str, int]) -> Iterator[Metric]:
    """Yield how many digests stand refused for good, by what the mail server refuses."""
    family = _family(
        "digests_refused", "Digests that the mail server refuses for good, by what of them.", "what"
    )
    for what, count in refused.items():
        family.add_metric([what], count)
    yield family


def log(now: LogFigures) -> Iterator[Metric]:
    """Yield whether the log signs, its backlog, and the oldest entry that each voucher lacks."""
    halted = _family("log_halted", "1 for the reason why the log signs nothing.", "reason")
    known = _TROUBLES if now.trouble is None else {*_TROUBLES, now.trouble}
    for trouble in sorted(known):
        halted.add_metric([trouble], float(trouble == now.trouble))
    yield halted
    yield _gauge("log_size", "Leaves of the newest published checkpoint.", now.size)
    yield _gauge("log_leaves_waiting", "Leaves that no checkpoint has, up to 100,000.", now.waiting)
    text = "How long the oldest leaf has waited for a checkpoint."
    yield _gauge("log_leaf_waiting_seconds", text, now.oldest_waiting)
    if now.head_age is not None:
        yield _gauge("log_head_age_seconds", "Age of the newest checkpoint.", now.head_age)
    text = "Age of the oldest audit entry, or checkpoint, that this voucher does not cover."
    ages = _family("unanchored_age_seconds", text, "by")
    for voucher, age in now.unanchored.items():
        ages.add_metric([str(voucher)], age)
    yield ages


def lanes(states: Iterable[LaneFigures]) -> Iterator[Metric]:
    """Yield for each state how many lanes are in it, their lag, concurrency and open deliveries."""
    count = _family("lanes", "Lanes of enabled webhooks.", "state")
    lag = _family("lane_lag_seconds", "How long the longest waiting lane has waited.", "state")
    allowed = _family("lane_concurrency", "Concurrent POSTs allowed, in all.", "state")
    waiting = _family("lane_open_deliveries", "Open deliveries that have a number.", "state")
    for each in states:
        for family, value in (
            (count, each.lanes),
            (lag, each.lag),
            (allowed, each.concurrency),
            (waiting, each.open),
        ):
            family.add_metric([each.state], value)
    yield from (count, lag, allowed, waiting)


def failing_webhooks(worst: Iterable[FailingWebhook]) -> Iterator[Metric]:
    """Yield the consecutive failures of the webhooks that have the most."""
    family = GaugeMetricFamily(
        f"{_PREFIX}_webhook_consecutive_failures",
        "Failures in a row of the webhooks that have the most, 20 at most.",
        labels=["tenant_id", "webhook_id"],
    )
    for each in worst:
        names = [ids.text("ten", each.tenant_id), ids.text("whk", each.webhook_id)]
        family.add_metric(names, each.failures)
    yield family


def processes(reports: Iterable[Process]) -> Iterator[Metric]:
    """Yield what each process reported: its release, memory and connections, and which leads."""
    labels = ["process", "host", "pid"]
    info = GaugeMetricFamily(
        f"{_PREFIX}_process_info", "1 for each process.", labels=[*labels, "version"]
    )
    memory, size, used, leader = (
        GaugeMetricFamily(f"{_PREFIX}_{name}", what, labels=labels)
        for name, what in (
            ("process_resident_memory_bytes", "Resident memory of a process."),
            ("pool_size", "Connections to the database that a process may have."),
            ("pool_in_use", "Most connections in use at once within the last five seconds."),
            ("scheduler_leader", "1 for the scheduler that rings, 0 for one that stands by."),
        )
    )
    for each in reports:
        names = [each.role, each.host, str(each.pid)]
        info.add_metric([*names, each.version], 1)
        for family, value in (
            (memory, each.memory),
            (size, each.pool_size),
            (used, each.pool_in_use),
            (leader, each.leads),
        ):
            if value is not None:
                family.add_metric(names, float(value))
    yield from (info, memory, size, used, leader)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value)


def _family(name: str, text: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=[label])
