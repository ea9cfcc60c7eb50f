"""`whoami` and `search`."""

from __future__ import annotations

import click

from record_service.commands.base import Command, Run, pass_run

_FOUND = {"TYPE": "type", "ID": "id", "TITLE": "title"}


@click.command(cls=Command)
@pass_run
def whoami(run: Run) -> None:
    """Show the key in use: its tenant, role, pin and end."""
    run.out.item(run.client.keys.self())


@click.command(cls=Command)
@click.argument("text", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 50), default=20, show_default=True)
@pass_run
def search(run: Run, text: tuple[str, ...], limit: int) -> None:
    """Find whatever an id names, or the newest records and findings with these words."""
    found = run.client.get("/v1/search", q=" ".join(text), limit=limit)
    if run.out.json:
        run.out.document(found)
    else:
        run.out.rows(found["data"], _FOUND)
