"""What a probe says of a part of the service: its state, since when, why, and what mends it.

`/readyz`, `manage doctor`, `/metrics` and the console all render these. And what a gauge is.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from app.clock import rfc3339


class State(enum.StrEnum):
    """How a part is; the values are those of `doctor --json`."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True)
class Part:
    """One thing that a probe found; a part of the service may have several.

    `detail` says why, where that is known. `mend` is the command, or the step, that mends it; `see`
    is a heading's anchor in docs/operations.md, or a page with one (`setup.md#redis`). `banner` is
    what every page of the console says of it, where it concerns tenants.
    """

    state: State
    reason: str
    mend: str | None = None
    see: str | None = None
    since: datetime | None = None
    detail: str | None = None
    banner: str | None = None
    name: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether all is well with it."""
        return self.state is State.OK

    @property
    def is_known(self) -> bool:
        """Whether its probe ran."""
        return self.state is not State.NOT_CHECKED

    @property
    def text(self) -> str:
        """Reason, time and detail in one line."""
        since = f" since {rfc3339(self.since)}" if self.since else ""
        return f"{self.reason}{since}{f': {self.detail}' if self.detail else ''}"


@dataclass(frozen=True)
class Gauge:
    """A family: its name without `record_service_`, and a value by the values of its labels.

    These are tuples of texts, in the order of `labels`; a mapping's keys are invariant to mypy.
    """

    name: str
    text: str
    values: Mapping[Any, float]
    labels: tuple[str, ...] = ()


class NotChecked(Exception):
    """A probe cannot run, because of what another one reports; the text says what."""


ok: Final = partial(Part, State.OK)
warning: Final = partial(Part, State.WARNING)
failed: Final = partial(Part, State.FAILED)


def not_checked(why: str) -> Part:
    """Return what a probe says that did not run."""
    return Part(State.NOT_CHECKED, f"not checked: {why}")


def named(name: str, found: Iterable[Part]) -> Iterator[Part]:
    """Give the parts that have no name this one; where nothing was found all is well."""
    for each in [*found] or [ok("nothing is wrong")]:
        yield each if each.name else replace(each, name=name)
