"""The command `record-service`, or `records`: its groups, the exit codes, and how errors are told.

Exit codes: 0 done, 1 the answer is no, 2 usage or 422, 3 gone or never there, 4 not allowed,
5 conflict, 6 unreachable or overloaded, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import click

from record_service import state, version
from record_service.commands import (
    audit,
    deliveries,
    doctor,
    exports,
    findings,
    general,
    jobs,
    keys,
    records,
    sessions,
    settings,
    sharing,
    webhooks,
)
from record_service.commands.base import Group, No, Run, pass_run
from record_service.errors import (
    Conflict,
    Denied,
    Invalid,
    NotFound,
    RecordsError,
    Unavailable,
    Unreachable,
)
from record_service.output import discard_output

CODES: tuple[tuple[type[RecordsError], int], ...] = (
    (Invalid, 2),
    (NotFound, 3),
    (Denied, 4),
    (Conflict, 5),
    (Unavailable, 6),
    (Unreachable, 6),
)
NO, USAGE, INTERRUPTED = 1, 2, 130
NAMES = ("record-service", "records")


class RecordService(Group):
    """The root group: `session open` and `sessions list` are both of one group."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a group by its plural, or by its singular."""
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, f"{cmd_name}s")

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a closed pipe is no failure, which click would make of it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            return None


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        context.find_root().obj.out.text(version())
        context.exit()


@click.group("record-service", cls=RecordService)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=20.0,
    show_default=True,
    help="For how many seconds a request that fails is tried again.",
)
@pass_run
def root(run: Run, patience: float) -> None:
    """Work with record-service.

    SERVICE_API_KEY is the key, of any role; SERVICE_BASE_URL the service's address.
    """
    run.patience = patience


for command in (
    general.whoami,
    general.search,
    sessions.agents,
    sessions.sessions,
    sessions.traces,
    records.records,
    findings.findings,
    findings.rules,
    exports.bundle,
    exports.prov,
    exports.otlp,
    exports.evidence,
    exports.exports,
    audit.audit,
    keys.keys,
    sharing.share,
    settings.settings,
    settings.holds,
    webhooks.webhooks,
    deliveries.deliveries,
    jobs.jobs,
    general.tail,
    doctor.doctor,
    general.completion,
):
    root.add_command(command)


# Of click 8.2 and newer; older ones print the help themselves.
_NO_ARGUMENTS: tuple[type[click.ClickException], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)


def main() -> None:
    """Run the command of this process's arguments, and exit with its code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What an encoding lacks is shown by its number, as Python does on standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Named as it was called: a shell completes that name.
    called = Path(sys.argv[0]).stem
    code = run(sys.argv[1:], called if called in NAMES else NAMES[0])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    if code == INTERRUPTED:
        # At once: a thread may still wait for an answer.
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str], name: str = NAMES[0]) -> int:
    """Run one command, called by this name; return its exit code."""
    try:
        root.main(arguments, prog_name=name, standalone_mode=False, obj=Run())
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except _NO_ARGUMENTS as error:
        # Its message is the whole help.
        error.show()
        return USAGE
    except (No, click.ClickException, RecordsError, sqlite3.Error, OSError) as error:
        text, code = _told(error)
        Run().out.note(f"{name}: {' '.join(text.split())}")
        return code
    return 0


def _told(error: Exception) -> tuple[str, int]:
    """Return what is said of an error, and its exit code."""
    if isinstance(error, No):
        return str(error), NO
    if isinstance(error, click.ClickException):
        return _usage(error), USAGE
    if isinstance(error, RecordsError):
        return str(error), _code(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'the system'}: {error.strerror or error}", USAGE
    return f"{state.folder()}: what is remembered there cannot be used: {error}", USAGE


def _code(error: RecordsError) -> int:
    # Of several files the first that failed counts.
    error = getattr(error, "first", error)
    return next((code for kind, code in CODES if isinstance(error, kind)), USAGE)


def _usage(wrong: click.ClickException) -> str:
    context = getattr(wrong, "ctx", None)
    help_at = f" `{context.command_path} --help` has more." if context else ""
    return f"{wrong.format_message()}{help_at}"
