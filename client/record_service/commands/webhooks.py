"""Webhooks: made, tried, held, explained."""

from __future__ import annotations

from typing import Any

import click

from record_service.client import Json
from record_service.commands.base import Group, Run, at, how_many, pass_run, since_until, yes_option
from record_service.commands.jobs import watch, watch_option
from record_service.commands.listening import listen, print_checks, verify
from record_service.output import plain

_WEBHOOKS = {
    "ID": "id",
    "STATUS": "status",
    "STATE": "health.state",
    "URL": "url",
    "TYPES": "event_types",
    "FAILING SINCE": "health.failing_since",
    "REFUSING SINCE": "health.refusing_since",
    "PAUSED UNTIL": "health.paused_until",
}
_STATS = {
    "AT": "at",
    "ACCEPTED": "accepted",
    "ATTEMPTED": "attempted",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "RETRIED": "retried",
    "P50 MS": "p50_ms",
    "P95 MS": "p95_ms",
}


@click.group(cls=Group)
def webhooks() -> None:
    """Where events are sent."""


@webhooks.command("list")
@how_many
@pass_run
def list_webhooks(run: Run, limit: int | None) -> None:
    """List webhooks, newest first."""
    run.list("/v1/webhooks", _WEBHOOKS, limit)


@webhooks.command("show")
@click.argument("webhook_id")
@pass_run
def show(run: Run, webhook_id: str) -> None:
    """Show a webhook and how it fares."""
    run.out.item(run.client.get(at("/v1/webhooks/{}", webhook_id)))


_header_option = click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME:VALUE",
    help="A header of your own; @FILE has one on each line, @- is standard input.",
)


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    """Return headers by name; a file keeps their values out of the list of processes."""
    lines: list[str] = []
    for each in given:
        if each.startswith("@"):
            with click.open_file(each[1:], encoding="utf-8") as file:
                lines += filter(str.strip, file.read().splitlines())
        else:
            lines.append(each)
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name.strip() in found:
            raise click.UsageError("Write each header once, as NAME:VALUE.")
        found[name.strip()] = value.strip()
    return found


@webhooks.command("add")
@click.argument("url")
@_header_option
@click.option("--types", metavar="TYPE,…", help="Else every type.")
@click.option("--description")
@click.option("--max-in-flight", type=click.IntRange(1))
@click.option("--lanes", type=click.IntRange(1), help="Queues beside each other; else one.")
@pass_run
def add(
    run: Run,
    url: str,
    headers: tuple[str, ...],
    types: str | None,
    description: str | None,
    max_in_flight: int | None,
    lanes: int | None,
) -> None:
    """Make a webhook; its secret is shown this once."""
    body: dict[str, Any] = {
        "url": url,
        "headers": _headers(headers),
        "event_types": types and types.split(","),
        "description": description,
    }
    given = {"max_in_flight": max_in_flight, "lanes": lanes}
    body |= {name: number for name, number in given.items() if number is not None}
    run.out.item(run.client.post("/v1/webhooks", body))


@webhooks.command("update")
@click.argument("webhook_id")
@click.option("--url")
@_header_option
@click.option("--no-headers", is_flag=True, help="Send none of your own any more.")
@pass_run
def update(
    run: Run, webhook_id: str, url: str | None, headers: tuple[str, ...], no_headers: bool
) -> None:
    """Send to another URL, or with other headers: those given replace all; a value *** stays."""
    if headers and no_headers:
        raise click.UsageError("Say --header or --no-headers.")
    body: dict[str, Any] = {} if url is None else {"url": url}
    if headers or no_headers:
        body["headers"] = _headers(headers)
    if not body:
        raise click.UsageError("Say --url, --header or --no-headers.")
    run.out.item(run.client.patch(at("/v1/webhooks/{}", webhook_id), body))


@webhooks.command("delete")
@click.argument("webhook_id")
@yes_option
@pass_run
def delete(run: Run, webhook_id: str, yes: bool) -> None:
    """Delete a webhook; what waits for it is cancelled."""
    run.confirm(f"Delete {webhook_id} and cancel what waits for it?", yes)
    run.client.delete(at("/v1/webhooks/{}", webhook_id))


@webhooks.command("test")
@click.argument("webhook_id")
@pass_run
def test(run: Run, webhook_id: str) -> None:
    """Send a test event, whatever the webhook's types."""
    run.out.item(run.client.post(at("/v1/webhooks/{}/test", webhook_id)))


@webhooks.command("rotate")
@click.argument("webhook_id")
@click.option("--overlap", type=click.IntRange(0, 604_800), metavar="SECONDS", help="A day.")
@yes_option
@pass_run
def rotate(run: Run, webhook_id: str, overlap: int | None, yes: bool) -> None:
    """Give a webhook a new secret, shown this once; the old one signs too for the overlap."""
    if overlap == 0:
        run.confirm(f"End the present secret of {webhook_id} at once?", yes)
    body = {} if overlap is None else {"overlap_seconds": overlap}
    run.out.item(run.client.post(at("/v1/webhooks/{}/rotate-secret", webhook_id), body))


@webhooks.command("hold")
@click.argument("webhook_id")
@pass_run
def hold(run: Run, webhook_id: str) -> None:
    """Keep what comes, and send nothing, until it is released."""
    run.out.item(run.client.patch(at("/v1/webhooks/{}", webhook_id), {"held": True}))


@webhooks.command("release")
@click.argument("webhook_id")
@pass_run
def release(run: Run, webhook_id: str) -> None:
    """Send what has gathered while it was held."""
    run.out.item(run.client.patch(at("/v1/webhooks/{}", webhook_id), {"held": False}))


@webhooks.command("why")
@click.argument("webhook_id")
@click.argument("event_id")
@pass_run
def why(run: Run, webhook_id: str, event_id: str) -> None:
    """Say why a webhook did or did not get an event, and what is next."""
    path = at("/v1/webhooks/{}/decisions", webhook_id)
    found = run.client.get(path, event_id=event_id)
    if run.out.json:
        run.out.document(found)
        return
    for text in (found["explanation"], found["summary"]):
        run.out.text(plain(text))


@webhooks.command("check")
@click.argument("webhook_id")
@watch_option
@pass_run
def check(run: Run, webhook_id: str, watching: bool) -> None:
    """Have the receiver checked with genuine, forged, old and repeated events."""
    job = run.client.post(at("/v1/webhooks/{}/check", webhook_id))
    if not watching:
        run.out.item(job)
        return

    def failed(progress: Json) -> bool:
        if not run.out.json:
            run.out.aside(print_checks, run.out, progress["checks"])
        return progress["passed"] is not True

    watch(run, job["id"], failed)


@webhooks.command("stats")
@click.argument("webhook_id", required=False)
@click.option("--step", type=click.Choice(["hour", "day"]))
@since_until
@pass_run
def stats(run: Run, /, webhook_id: str | None, **query: Any) -> None:
    """Count what was sent by hour or day: of one webhook, or of all."""
    path = "/v1/stats" if webhook_id is None else at("/v1/webhooks/{}/stats", webhook_id)
    found = run.client.get(path, **query)
    if run.out.json:
        run.out.document(found)
    else:
        run.out.rows(found["data"], _STATS)


for command in (listen, verify):
    webhooks.add_command(command)
