"""The tenant's settings."""

from __future__ import annotations

import click

from records.commands.base import Group, Run, pass_run, yes_option


@click.group(cls=Group)
def settings() -> None:
    """Visibility, retention, anchoring and the digest of the tenant."""


@settings.command("show")
@pass_run
def show(run: Run) -> None:
    """Show the settings."""
    run.out.item(run.client.get("/v1/tenant/settings"))


@settings.command("set")
@click.option("--visibility", type=click.Choice(["public", "private"]))
@click.option("--retention-days", metavar="DAYS", help="1 to 3650, or `forever`.")
@click.option("--anchoring/--no-anchoring", default=None)
@click.option("--notify", metavar="ADDRESS", help="Where the digest goes, or `none`.")
@yes_option
@pass_run
def change(
    run: Run,
    visibility: str | None,
    retention_days: str | None,
    anchoring: bool | None,
    notify: str | None,
    yes: bool,
) -> None:
    """Change what is named; the rest stays."""
    body: dict[str, object] = {}
    if visibility is not None:
        body["bundle_visibility"] = visibility
    if retention_days is not None:
        body["bundle_retention_days"] = _days(retention_days)
    if anchoring is not None:
        body["anchoring_enabled"] = anchoring
    if notify is not None:
        body["notification_email"] = None if notify == "none" else notify
    if not body:
        raise click.UsageError("Name what is to change.")
    if body.get("bundle_retention_days") is not None:
        run.confirm(f"Expire every bundle that is older than {retention_days} days?", yes)
    run.out.item(run.client.patch("/v1/tenant/settings", body))


def _days(text: str) -> int | None:
    if text == "forever":
        return None
    if not text.isascii() or not text.isdigit():
        raise click.UsageError("--retention-days takes a number, or `forever`.")
    return int(text)


COMMANDS: tuple[click.Command, ...] = (settings,)
