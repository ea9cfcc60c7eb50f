"""What every command has: `--json`, the client, questions before what destroys."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import wraps
from typing import Any, Callable, TypeVar, cast
from urllib.parse import quote

import click
from click.shell_completion import CompletionItem

from record_service.client import PAGE, Client, Json
from record_service.errors import RecordsError
from record_service.output import Columns, Output

_COMPLETION_SECONDS = 1.5

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def at(path: str, *ids: str) -> str:
    """Return the path of a thing: `at("/v1/agents/{}", agent_id)`."""
    return path.format(*(quote(each, safe="") for each in ids))


class No(Exception):
    """The command did its work, and the answer is no: exit code 1."""


class Run:
    """One run of the command."""

    def __init__(self) -> None:
        self.out = Output()
        self.patience = 20.0
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client for the service of the environment."""
        if self._client is None:
            self._client = Client(patience=self.patience)
        return self._client

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something is destroyed, unless `--yes` has answered. Raises `No`."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} There is no terminal to confirm it: add --yes.")
        if not self.out.ask(question):
            raise No("Nothing was done.")

    def list(self, path: str, columns: Columns, limit: int | None, **query: Any) -> None:
        """Print a list: at most `limit` rows, or all."""
        end: list[str | None] = [None]

        def rows() -> Iterator[Json]:
            left = limit
            while left is None or left > 0:
                size = PAGE if left is None else min(left, PAGE)
                page = self.client.get(path, limit=size, cursor=end[0], **query)
                end[0] = page.get("next_cursor")
                yield from page["data"]
                if end[0] is None:
                    return
                left = None if left is None else left - size

        if self.out.json:
            self.out.array(rows(), lambda: end[0])
            return
        self.out.rows(rows(), columns)
        if end[0] is not None and self.out.terminal:
            self.out.note(f"The first {limit} are shown: --limit N, or --all, for more.")


# Where a shell finds the ids of a parameter of this name, and which field tells what each is.
_LISTS = {
    name: (f"/v1/{kind}s", told)
    for kind, told in {
        "agent": "name",
        "finding": "title",
        "job": "kind",
        "key": "name",
        "record": "title",
        "rule": "name",
        "session": "title",
        "webhook": "url",
    }.items()
    for name in (kind, f"{kind}_id", f"{kind}_ids")
} | {"delivery_id": ("/v1/deliveries", "event_type")}


class Id(click.types.StringParamType):
    """An id, which a shell completes from the newest of its list."""

    def __init__(self, path: str, told: str) -> None:
        self._path = path
        self._told = told

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Ask the service, for a moment: who types waits, and an error has no place to go."""
        try:
            with Client(patience=0) as client:
                rows = client.get(self._path, limit=PAGE, timeout=_COMPLETION_SECONDS)["data"]
        except RecordsError:
            return []
        return [
            CompletionItem(row["id"], help=str(row[self._told] or ""))
            for row in rows
            if row["id"].startswith(incomplete)
        ]


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().obj.out.json = True


class Command(click.Command):
    """A command that takes `--json` after its name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for param in self.params:
            if param.name in _LISTS and param.type is click.STRING:
                param.type = Id(*_LISTS[param.name])
        self.params.append(_json_option())


class Group(click.Group):
    """A group that takes `--json` before a command's name."""

    command_class = Command
    group_class = type

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.append(_json_option())


def _json_option() -> click.Option:
    return click.Option(
        ["--json"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_set_json,
        help="Print what the API answers; streams a line each.",
    )


def yes_option(command: Decorated) -> Decorated:
    """Give a command `--yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def how_many(command: Decorated) -> Decorated:
    """Give a list `--limit` and `--all`, read as `limit`: None for all."""

    @click.option("--all", "every", is_flag=True, help="All, however many.")
    @click.option(
        "--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most."
    )
    @wraps(command)
    def limited(*arguments: Any, limit: int, every: bool, **options: Any) -> None:
        command(*arguments, limit=None if every else limit, **options)

    return cast(Decorated, limited)


def since_until(command: Decorated) -> Decorated:
    """Give a list `--since` and `--until`."""
    command = click.option("--until", metavar="TIME", help="Before this moment.")(command)
    return click.option("--since", metavar="TIME", help="At this moment or later.")(command)


pass_run = click.make_pass_decorator(Run)
