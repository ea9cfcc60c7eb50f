"""The queue: who consumes it, what waits in it, and what is overdue in the database."""

from collections.abc import Iterator

import redis

from app import heartbeats, queue
from app.core.health import gauges
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding, NotChecked

_MANY = 1_000
# As long as the alarms of docs/operations.md wait.
_OVERDUE_SECONDS = 60.0
_WORKERS = "dramatiq:__heartbeats__"


def check(context: Context) -> Iterator[Finding]:
    """Yield what is missing or late."""
    parts = {"worker and scheduler": _consumers, "messages": _messages, "what is due": _rows}
    for name, part in parts.items():
        try:
            yield from part(context)
        except NotChecked as why:
            yield findings.not_checked(f"{name}: {why}")


def _consumers(context: Context) -> Iterator[Finding]:
    for role, is_up in context.redis(heartbeats.presence).items():
        if is_up:
            yield findings.ok(f"a {role} gave a sign of life within 15 s")
        else:
            yield findings.failed(
                f"no {role} gave a sign of life for 15 s",
                f"start the Procfile's `{role}`, or read its last lines",
                see="#readyz-says-degraded",
            )


def _messages(context: Context) -> Iterator[Finding]:
    waiting, taken = context.redis(_count)
    counted = ", ".join(f"{name} {count}" for name, count in waiting.items())
    text = f"messages waiting: {counted}; taken and not done: {taken}"
    if max(waiting.values()) > _MANY:
        yield findings.warning(text, "start a worker, or add one", see="#an-alert-fires")
    else:
        yield findings.ok(text)


def _count(client: "redis.Redis") -> tuple[dict[str, int], int]:
    """Return how many messages wait in each queue, and how many workers have taken."""
    names = sorted(queue.QUEUES)
    workers = [each.decode() for each in client.zrange(_WORKERS, 0, -1) if isinstance(each, bytes)]
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.llen(queue.queue_key(name))
        for worker in workers:
            for name in names:
                pipe.scard(f"dramatiq:__acks__.{worker}.{name}")
        counts = pipe.execute()
    return dict(zip(names, counts, strict=False)), sum(counts[len(names) :])


def _rows(context: Context) -> Iterator[Finding]:
    with context.reading() as session:
        found = gauges.read(session)
    if found.oldest_due > _OVERDUE_SECONDS:
        yield findings.failed(
            f"{found.lanes_overdue} webhooks have deliveries overdue, the oldest for"
            f" {found.oldest_due:.0f} s",
            "start a worker, or add one",
            see="#an-alert-fires",
        )
    if found.oldest_job_due > _OVERDUE_SECONDS:
        yield findings.failed(
            f"a job has been due for {found.oldest_job_due:.0f} s",
            "start a worker, or add one",
            see="#an-alert-fires",
        )
    if found.jobs_dead:
        yield findings.warning(
            f"{found.jobs_dead} jobs are dead", "GET /v1/jobs?status=dead", see="#a-dead-job"
        )
    if max(found.oldest_due, found.oldest_job_due) <= _OVERDUE_SECONDS:
        yield findings.ok(
            f"nothing is overdue: {found.lanes_due} webhooks and"
            f" {found.jobs_queued + found.jobs_retrying} jobs have work waiting"
        )
