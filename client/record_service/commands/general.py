"""`whoami`, `search`, `tail` and `completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from record_service.client import NOW
from record_service.commands.base import Command, Run, pass_run
from record_service.output import plain

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


@click.command(cls=Command)
@click.option("--type", "event_type", help="Of this type alone, such as finding.created.")
@click.option("--oldest", is_flag=True, help="Begin with the oldest that is kept, not with now.")
@click.option("--no-follow", is_flag=True, help="End where no more are there.")
@pass_run
def tail(run: Run, event_type: str | None, oldest: bool, no_follow: bool) -> None:
    """Print the tenant's events as they come, until Ctrl-C; nothing is remembered."""
    for events, _ in run.client.follow(None if oldest else NOW, event_type, to_end=no_follow):
        for event in events:
            about = event["data"].get("title") or event["data"].get("id") or ""
            cells = [event["timestamp"], event["type"], event["id"], plain(about)]
            run.out.line(event, "\t".join(cells))


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what teaches a shell to complete: `eval "$(record-service completion bash)"`."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} cannot be taught.")
    root = context.find_root()
    name = root.info_name or ""
    # The variable that click reads for a program of this name.
    variable = f"_{name}_COMPLETE".replace("-", "_").upper()
    click.echo(kind(root.command, {}, name, variable).source())
