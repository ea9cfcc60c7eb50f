"""The tenant's settings, and its legal holds."""

from __future__ import annotations

from typing import Any

import click

from record_service.commands.base import (
    Decorated,
    Group,
    Run,
    at,
    how_many,
    pass_run,
    since_until,
    yes_option,
)

_NULL = "null"


@click.group(cls=Group)
def settings() -> None:
    """Visibility, retention, anchoring and the digest of the tenant."""


@settings.command("show")
@pass_run
def show(run: Run) -> None:
    """Show the settings."""
    run.out.item(run.client.get("/v1/tenant/settings"))


@settings.command("set")
@click.option("--bundle-visibility", type=click.Choice(["public", "private"]))
@click.option("--bundle-retention-days", metavar="DAYS", help="1 to 3650, or `null`: for ever.")
@click.option("--anchoring-enabled", type=bool)
@click.option("--notification-email", metavar="ADDRESS", help="Or `null`: no digest.")
@yes_option
@pass_run
def change(run: Run, /, yes: bool, bundle_retention_days: str | None, **given: Any) -> None:
    """Change what is named; the rest stays."""
    body = {name: value for name, value in given.items() if value is not None}
    if bundle_retention_days is not None:
        body["bundle_retention_days"] = _days(bundle_retention_days)
    if body.get("notification_email") == _NULL:
        body["notification_email"] = None
    if not body:
        raise click.UsageError("Name what is to change.")
    if body.get("bundle_retention_days") is not None:
        run.confirm(f"Expire every bundle that is older than {bundle_retention_days} days?", yes)
    run.out.item(run.client.patch("/v1/tenant/settings", body))


def _days(text: str) -> int | None:
    if text == _NULL:
        return None
    if not text.isascii() or not text.isdigit():
        raise click.UsageError("--bundle-retention-days takes a number, or `null`.")
    return int(text)


_HOLDS = {
    "ID": "id",
    "STATUS": "status",
    "RECORD": "record_id",
    "SESSION": "session_id",
    "AGENT": "agent_id",
    "SINCE": "since",
    "UNTIL": "until",
    "CREATED": "created_at",
    "REASON": "reason",
}


def _scope(command: Decorated) -> Decorated:
    """Give a command the options that say what a hold is on."""
    for name in ("agent", "session", "record"):
        option = click.option(f"--{name}", f"{name}_id", metavar="ID")
        command = option(command)
    return command


@click.group(cls=Group)
def holds() -> None:
    """Legal holds: what they cover does not expire."""


@holds.command("create")
@click.option("--reason", required=True, metavar="TEXT")
@_scope
@since_until
@pass_run
def hold(run: Run, /, **given: str | None) -> None:
    """Hold one record, those of a session or an agent, or those of a range of time."""
    body = {name: value for name, value in given.items() if value is not None}
    run.out.item(run.client.post("/v1/holds", body))


@holds.command("list")
@click.option("--status", type=click.Choice(["standing", "released"]))
@_scope
@how_many
@pass_run
def list_holds(run: Run, /, limit: int | None, **filters: str | None) -> None:
    """List holds, newest first; with --record those that cover it."""
    run.list("/v1/holds", _HOLDS, limit, **filters)


@holds.command("show")
@click.argument("hold_id")
@pass_run
def show_hold(run: Run, hold_id: str) -> None:
    """Show one hold."""
    run.out.item(run.client.get(at("/v1/holds/{}", hold_id)))


@holds.command("release")
@click.argument("hold_id")
@yes_option
@pass_run
def release(run: Run, hold_id: str, yes: bool) -> None:
    """Release a hold; what it kept beyond its time is deleted."""
    run.confirm(f"Release {hold_id}? What it kept beyond its time is deleted.", yes)
    run.client.delete(at("/v1/holds/{}", hold_id))
