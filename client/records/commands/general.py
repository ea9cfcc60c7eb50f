"""`whoami` and `search`."""

from __future__ import annotations

import click

from records.commands.base import Command, Run, pass_run

_FOUND = {"TYPE": "type", "ID": "id", "TITLE": "title"}


@click.command(cls=Command)
@pass_run
def whoami(run: Run) -> None:
    """Show the key in use: its tenant, role, pin and end."""
    run.out.item(run.client.whoami())


@click.command(cls=Command)
@click.argument("text", nargs=-1, required=True)
@pass_run
def search(run: Run, text: tuple[str, ...]) -> None:
    """Find anything by an id or by words."""
    found = run.client.get("/v1/search", q=" ".join(text))
    if run.out.json:
        run.out.document(found)
    else:
        run.out.rows(found["data"], _FOUND)


COMMANDS: tuple[click.Command, ...] = (whoami,)
