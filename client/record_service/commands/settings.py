"""The tenant's settings."""

from __future__ import annotations

from typing import Any

import click

from record_service.commands.base import Group, Run, pass_run, yes_option

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
