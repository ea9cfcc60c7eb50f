"""Share links: made, listed, revoked."""

from __future__ import annotations

import click

from record_service.commands.base import Group, Run, at, how_many, pass_run, yes_option

_LINKS = {
    "ID": "id",
    "ACTIVE": "active",
    "OPENED": "opened",
    "LAST OPENED": "last_opened_at",
    "EXPIRES": "expires_at",
    "CREATED": "created_at",
}


@click.group(cls=Group)
def share() -> None:
    """Links that open one record, without a key."""


@share.command("create")
@click.argument("record_id")
@click.option("--expires-in", type=click.IntRange(1, 2_592_000), metavar="SECONDS", help="A day.")
@pass_run
def create(run: Run, record_id: str, expires_in: int | None) -> None:
    """Make a link; its URL is shown this once."""
    body = {} if expires_in is None else {"expires_in_seconds": expires_in}
    run.out.item(run.client.post(at("/v1/records/{}/share-links", record_id), body))


@share.command("list")
@click.argument("record_id")
@how_many
@pass_run
def list_links(run: Run, record_id: str, limit: int | None) -> None:
    """List a record's links, newest first."""
    path = at("/v1/records/{}/share-links", record_id)
    run.list(path, _LINKS, limit)


@share.command("revoke")
@click.argument("record_id")
@click.argument("link_id")
@yes_option
@pass_run
def revoke(run: Run, record_id: str, link_id: str, yes: bool) -> None:
    """Revoke a link, at once and for good."""
    run.confirm(f"Revoke {link_id}?", yes)
    run.client.delete(at("/v1/records/{}/share-links/{}", record_id, link_id))
