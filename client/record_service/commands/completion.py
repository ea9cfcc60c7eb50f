"""Completion for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from record_service.commands.base import Command


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
