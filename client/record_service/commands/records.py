"""Records: found, shown, pushed."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from typing import Any, Callable

import click

from record_service.commands.base import Group, Run, at, how_many, pass_run, since_until
from record_service.errors import RecordsError
from record_service.journal import Journal
from record_service.output import plain
from record_service.pushing import Content, Pushed, Pusher, Stopped, body

_RECORDS = {
    "ID": "id",
    "KIND": "kind",
    "TITLE": "title",
    "PRINCIPAL": "principal",
    "LOG": "log.status",
    "CREATED": "created_at",
}
_STDIN = "-"


@click.group(cls=Group)
def records() -> None:
    """What agents did: signed, searchable, in a public log."""


@records.command("list")
@click.option("--q", "q", metavar="WORDS", help='Words that must be there; "a phrase".')
@click.option("--agent", "agent_id", metavar="ID")
@click.option("--session", "session_id", metavar="ID")
@click.option("--principal")
@click.option("--kind")
@click.option("--label", multiple=True, metavar="NAME:VALUE")
@since_until
@how_many
@pass_run
def list_records(run: Run, /, limit: int | None, **filters: Any) -> None:
    """List records, newest first; with --q the best first."""
    run.list("/v1/records", _RECORDS, limit, **filters)


@records.command("show")
@click.argument("record_id")
@pass_run
def show_record(run: Run, record_id: str) -> None:
    """Show a record's metadata; `record-service bundle` has what was done."""
    run.out.item(run.client.get(at("/v1/records/{}", record_id)))


@records.command("push")
@click.argument("files", nargs=-1, required=True)
@click.option("--session", metavar="ID", help="Push each file as the content of a record of this.")
@click.option(
    "--kind", default="file", show_default=True, help="With --session: the records' kind."
)
@click.option("--title", help="With --session: the records' title; else the file's name.")
@click.option("--label", multiple=True, metavar="NAME:VALUE", help="With --session.")
@click.option("--at-once", type=click.IntRange(1, 32), default=4, show_default=True)
@pass_run
def push(
    run: Run,
    files: tuple[str, ...],
    session: str | None,
    kind: str,
    title: str | None,
    label: tuple[str, ...],
    at_once: int,
) -> None:
    """Push files as records: JSON as POST /v1/records takes it, or with --session any file.

    Run it again after a break: a file that was pushed from this machine, unchanged and from the
    same place, is not pushed again. `-` is standard input: each run makes a record of its own.
    """
    if (title or label) and session is None:
        raise click.UsageError("--title and --label need --session: a record's JSON has its own.")
    content = Content(session, kind, title, _labels(label)) if session else None
    if _STDIN in files:
        if len(files) > 1:
            raise click.UsageError("Push standard input alone: `record-service record push -`.")
        sent = body(_STDIN, sys.stdin.buffer.read(), content)
        run.out.item(run.client.post("/v1/records", sent))
        return
    me = run.client.keys.self()
    with ExitStack() as shown:
        opened = Journal(run.client.base_url, me["tenant_id"], me["id"])
        journal = shown.enter_context(closing(opened))
        pusher = Pusher(run.client, journal, at_once)
        tally = _Tally(run, len(files), shown)
        for pushed in pusher.push(files, content):
            tally.add(pushed)
    tally.close()


class _Tally:
    """Counts what became of the files, and shows it: a bar for a person, a line each in a pipe."""

    def __init__(self, run: Run, count: int, shown: ExitStack) -> None:
        self._run = run
        self._count = count
        self._new = self._again = 0
        self._errors: list[RecordsError] = []
        self._advance: Callable[[int], object] | None = None
        if run.out.terminal and not run.out.json:
            bar = click.progressbar(length=count, label="Pushing", file=sys.stdout, show_pos=True)
            self._advance = shown.enter_context(bar).update

    def add(self, pushed: Pushed) -> None:
        if pushed.error is not None:
            if not isinstance(pushed.error, Stopped):
                self._errors.append(pushed.error)
                text = str(pushed.error).replace(f"{pushed.path}: ", "", 1)
                self._run.out.note(f"{pushed.path}: {text}")
        else:
            self._new += not pushed.again
            self._again += pushed.again
            if self._advance is None:
                line = {"path": pushed.path, "id": pushed.record_id, "again": pushed.again}
                text = f"{plain(pushed.path)}\t{pushed.record_id}"
                self._run.out.aside(self._run.out.line, line, text)
        if self._advance is not None:
            self._advance(1)

    def close(self) -> None:
        """Say what became of all. Raises the first error."""
        left = self._count - self._new - self._again
        text = f"{self._new} pushed, {self._again} were there, {left} not."
        if self._run.out.terminal and not self._run.out.json:
            self._run.out.note(text)
        if self._errors:
            raise _Unfinished(self._errors[0], text)


class _Unfinished(RecordsError):
    """Some files were not pushed; what is wrong with each was told."""

    def __init__(self, first: RecordsError, text: str) -> None:
        super().__init__(f"{text} Mend what is told above and run it again.")
        self.first = first


def _labels(pairs: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        name, colon, value = pair.partition(":")
        if not (name and colon):
            raise click.UsageError("Write a label as name:value.")
        labels[name] = value
    return labels
