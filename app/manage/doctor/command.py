"""The command `python -m app.manage doctor`: its checks, their threads, and the report."""

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import click

from app.core.health import probes
from app.core.health.parts import NotChecked, Part, State, failed, named, not_checked
from app.errors import Unavailable
from app.manage.doctor import outside, production, stores
from app.manage.doctor.context import Context
from app.manage.service import service
from app.settings import SettingError, environment

Check = Callable[[Context], Iterable[Part]]

SETTINGS_UNREADABLE = 2
# The slowest, a timestamp authority, has 15.
DEADLINE_SECONDS = 20.0
_MARKS = {
    State.OK: "ok  ",
    State.WARNING: "warn",
    State.FAILED: "FAIL",
    State.NOT_CHECKED: "skip",
}


def _probed(name: str) -> Check:
    """Return the check that asks a probe of `/readyz`."""

    def check(context: Context) -> Iterator[Part]:
        with context.reading() as session:
            yield from probes.OF_DATABASE[name](session, context.settings)

    return check


# In the order of the report.
CHECKS: Final[Mapping[str, Check]] = {
    "settings": production.settings,
    "versions": production.versions,
    "database": stores.database,
    "database_writes": stores.writes,
    "database_replica": stores.replica,
    "redis": stores.redis,
    "clock": stores.clocks,
    "roles": production.roles,
    "connections": stores.connections,
    "queue": stores.queues,
    "retention": production.retention,
    "keys": production.keys,
    "master_keys": _probed("master_keys"),
    "log": outside.log,
    "audit": _probed("audit"),
    "timestamps": outside.authority,
    "witnesses": outside.witnesses,
    "anchoring": _probed("anchoring"),
    "objects": outside.objects,
    "mail": outside.mail,
    "webhooks": outside.receivers,
}


@click.command()
@click.option("--json", "in_json", is_flag=True, help="Print one JSON object.")
def doctor(in_json: bool) -> int:
    """Check everything, and say what mends it; exit 1 if something failed."""
    try:
        with (
            service() as (settings, database),
            Context(settings, database, environment()) as context,
        ):
            parts = run(context, CHECKS)
        status = exit_status(parts)
    except SettingError as error:
        unread = failed(str(error), "correct that variable", see="#settings")
        parts, status = list(named("settings", [unread])), SETTINGS_UNREADABLE
    for line in [as_json(parts)] if in_json else lines(parts):
        print(line)
    return status


def run(
    context: Context, checks: Mapping[str, Check], seconds: float = DEADLINE_SECONDS
) -> list[Part]:
    """Run each check in a thread of its own; return what they found, in the order of `checks`.

    A check that has no result after `seconds` is reported as failed; its thread is abandoned.
    """
    done: queue.SimpleQueue[tuple[str, list[Part]]] = queue.SimpleQueue()
    for name, check in checks.items():
        # A daemon: name resolution in a driver of C cannot be interrupted.
        threading.Thread(
            target=lambda name=name, check=check: done.put((name, _found(context, check))),
            name=f"doctor {name}",
            daemon=True,
        ).start()
    ends = time.monotonic() + seconds
    late = failed(
        f"no answer within {seconds:g} s", "see whether names resolve: `getent hosts HOST`"
    )
    results = {name: [late] for name in checks}
    for _ in checks:
        try:
            name, found = done.get(timeout=max(ends - time.monotonic(), 0.0))
        except queue.Empty:
            break
        results[name] = found
    return [part for name, found in results.items() for part in named(name, found)]


def _found(context: Context, check: Check) -> list[Part]:
    found: list[Part] = []
    try:
        # What was found before a store went away is kept.
        found.extend(check(context))
    except NotChecked as why:
        found.append(not_checked(str(why)))
    except Unavailable:
        found.append(not_checked("the database did not answer this"))
    except Exception as error:  # noqa: BLE001 - one check's fault must not hide the others
        kind = type(error).__name__
        found.append(failed(f"the check itself failed ({kind})", "report this line"))
    return found


def lines(parts: Sequence[Part]) -> Iterator[str]:
    """Yield a line for each part, and one that counts them."""
    for each in parts:
        mend = ", see ".join(filter(None, (each.mend, _page(each.see))))
        text = f"{_MARKS[each.state]}  {each.name}: {each.text}{f' → {mend}' if mend else ''}"
        # What could steer a terminal is left out: some parts quote drivers.
        yield "".join(char if char.isprintable() else " " for char in text)
    counted = Counter(each.state for each in parts)
    yield ", ".join(f"{counted[state]} {state.replace('_', ' ')}" for state in State)


def as_json(parts: Sequence[Part]) -> str:
    """Return the same as one JSON object; its format is described in docs/operations.md."""
    found = [
        {
            "check": each.name,
            "status": each.state,
            "message": each.text,
            "mend": each.mend,
            "see": _page(each.see),
        }
        for each in parts
    ]
    status = State.FAILED if exit_status(parts) else State.OK
    return json.dumps({"status": status, "findings": found}, indent=2)


def exit_status(parts: Iterable[Part]) -> int:
    """Return 1 if something failed, else 0."""
    return int(any(each.state is State.FAILED for each in parts))


def _page(see: str | None) -> str | None:
    if see is None:
        return None
    page, _, anchor = see.rpartition("#")
    return f"docs/{page or 'operations.md'}#{anchor}"
