"""Deliveries of all webhooks: listed, grouped by cause, sent again."""

from __future__ import annotations

from typing import Any

import click

from record_service.client import Json
from record_service.commands.base import Decorated, Group, Run, at, how_many, pass_run, since_until
from record_service.commands.jobs import watch, watch_option
from record_service.errors import problem

_STATUSES = ["pending", "sending", "retrying", "succeeded", "failed", "cancelled"]
_DELIVERIES = {
    "ID": "id",
    "STATUS": "status",
    "EVENT TYPE": "event_type",
    "OUTCOME": "last_attempt.outcome",
    "CODE": "last_attempt.status",
    "ATTEMPTS": "attempt_count",
    "NEXT": "next_attempt_at",
    "CREATED": "created_at",
    "WEBHOOK": "webhook_id",
}
_GROUPS = {
    "COUNT": "count",
    "RETRYING": "retrying",
    "OUTCOME": "outcome",
    "CODE": "status_code",
    "ERROR": "error",
    "LAST": "last_at",
    "WEBHOOK": "webhook_id",
    "EXAMPLE": "example_id",
    "GROUP": "group",
}
_HOW = ("rate", "canary", "stop_after_failures", "as_of")


def _filters(command: Decorated) -> Decorated:
    """Give a command the filters of all lists of deliveries."""
    for option in (
        click.option("--code", "status_code", type=int, help="The last answer's HTTP status."),
        click.option("--outcome"),
        click.option("--job", "job_id", metavar="ID"),
        click.option("--finding", "finding_id", metavar="ID", help="Of its event."),
        click.option("--record", "record_id", metavar="ID", help="Of findings about it."),
        click.option("--session", "session_id", metavar="ID", help="Of it, and of its findings."),
        click.option("--event", "event_id", metavar="ID"),
        click.option("--type", "event_type"),
        click.option("--webhook", "webhook_id", metavar="ID"),
    ):
        command = option(command)
    return since_until(command)


@click.group(cls=Group)
def deliveries() -> None:
    """What was sent to webhooks, and what became of it."""


@deliveries.command("list")
@click.option("--status", type=click.Choice(_STATUSES), multiple=True)
@click.option("--group")
@_filters
@how_many
@pass_run
def list_deliveries(run: Run, /, limit: int | None, **filters: Any) -> None:
    """List deliveries, newest first."""
    run.list("/v1/deliveries", _DELIVERIES, limit, **filters)


@deliveries.command("groups")
@click.option("--status", type=click.Choice(["failed", "retrying"]), multiple=True)
@_filters
@pass_run
def groups(run: Run, /, **filters: Any) -> None:
    """Group what failed by webhook and cause, most first."""
    found = run.client.get("/v1/deliveries/groups", **filters)
    if run.out.json:
        run.out.document(found)
        return
    run.out.rows(found["data"], _GROUPS)
    if not found["complete"]:
        run.out.note(f"Of the newest {found['window']} failures.")


@deliveries.command("show")
@click.argument("delivery_id")
@pass_run
def show(run: Run, delivery_id: str) -> None:
    """Show a delivery with its payload and every attempt."""
    run.out.item(_find(run, delivery_id))


@deliveries.command("replay")
@click.argument("ids", nargs=-1)
@click.option("--webhook", metavar="ID", help="Of this webhook alone.")
@click.option("--group", help="As `deliveries groups` names it.")
@click.option("--status", type=click.Choice(["failed", "cancelled", "skipped"]), multiple=True)
@click.option("--type", "event_type", multiple=True)
@since_until
@click.option("--failed-since", metavar="TIME")
@click.option("--failed-until", metavar="TIME")
@click.option("--rate", type=click.IntRange(1), help="At most so many a second.")
@click.option("--canary", type=click.IntRange(1, 100), help="These first; no more if one fails.")
@click.option("--stop-after", "stop_after_failures", type=click.IntRange(1), metavar="FAILURES")
@click.option("--as-of", metavar="TIME", help="As a dry run said: exactly those.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@watch_option
@pass_run
def replay(
    run: Run,
    /,
    ids: tuple[str, ...],
    webhook: str | None,
    dry_run: bool,
    watching: bool,
    **given: Any,
) -> None:
    """Send again what failed: these IDs, a --group, or what the filters say.

    With --watch it ends with 1 if one of them fails again.
    """
    body = {name: value for name, value in given.items() if value not in (None, ())}
    if ids:
        body["ids"] = list(ids)
    if webhook is None and not body.keys() - set(_HOW):
        raise click.UsageError("Name what to send again: IDs, --group, --webhook, --since, …")
    path = "/v1/deliveries/replay" if webhook is None else at("/v1/webhooks/{}/replay", webhook)
    if dry_run:
        run.out.item(run.client.post(path, {**body, "dry_run": True}))
        return
    job = run.client.post(path, body)
    if watching:
        watch(run, job["id"], _failed_again)
    else:
        run.out.item(job)


@deliveries.command("retry-now")
@click.argument("delivery_id", required=False)
@click.option("--webhook", metavar="ID", help="All that waits of this webhook.")
@click.option("--rate", type=click.IntRange(1), help="At most so many a second.")
@watch_option
@pass_run
def retry_now(
    run: Run, /, delivery_id: str | None, webhook: str | None, rate: int | None, watching: bool
) -> None:
    """Send now what waits for an attempt: one delivery, or all of a webhook.

    With --watch, all of a webhook is followed; it ends with 1 if one of them fails again.
    """
    if delivery_id is not None:
        found = _find(run, delivery_id)
        path = at("/v1/webhooks/{}/deliveries/{}/retry-now", found["webhook_id"], found["id"])
        run.out.item(run.client.post(path))
    elif webhook is not None:
        body = {} if rate is None else {"rate": rate}
        made = run.client.post(at("/v1/webhooks/{}/retry-now", webhook), body)
        if watching:
            watch(run, made["job_id"], lambda told: bool(told["failed"] or told["retrying"]))
        else:
            run.out.item(made)
    else:
        raise click.UsageError("Name a delivery, or --webhook.")


def _find(run: Run, delivery_id: str) -> Json:
    """Return a delivery; which webhook has it is found by the search."""
    for hit in run.client.get("/v1/search", q=delivery_id)["data"]:
        if hit["type"] == "delivery":
            webhook = hit["url"].rpartition("/webhooks/")[2].partition("/")[0]
            return run.client.get(at("/v1/webhooks/{}/deliveries/{}", webhook, hit["id"]))
    detail = f"There is no delivery {delivery_id}."
    raise problem(404, {"title": "Not found", "detail": detail})


def _failed_again(progress: Json) -> bool:
    return bool(progress.get("failed_same") or progress.get("failed_otherwise"))
