"""Completion for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from records.commands.base import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what teaches a shell to complete: `eval "$(records completion bash)"`."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} cannot be taught.")
    click.echo(kind(context.find_root().command, {}, "records", "_RECORDS_COMPLETE").source())
