"""Data flow between steps: which step made the version of a name that another one used.

A name gets a new version wherever a step has it among its outputs, and where another value is
reported. A step uses the newest version of the steps before it; if it ended before that one's
maker began, one from outside.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.evidence.bundle import Step
from app.evidence.times import began, ended
from app.lib import canonical_json
from app.lib.canonical_json import JSON


class Unknown:
    """The value of what was only named."""


UNKNOWN = Unknown()


@dataclass(slots=True, eq=False)
class Version:
    """One state of what a name stands for; `maker` is the index of the step that made it.

    The first version has number 1. Without a maker it came from outside the record.
    """

    name: str
    number: int
    value: "JSON | Unknown"
    maker: int | None
    older: "Version | None"


@dataclass(slots=True)
class DataFlow:
    """All versions, in the order of their first appearance, and who used which (step index)."""

    versions: list[Version] = field(default_factory=list)
    uses: list[tuple[int, Version]] = field(default_factory=list)


def follow(steps: Sequence[Step]) -> DataFlow:
    """Walk through the steps once; memory grows with the names in them, not with their values."""
    flow = DataFlow()
    last: dict[str, Version] = {}
    newest: dict[str, Version] = {}
    # What steps used that ended before the newest version's maker began.
    earlier: dict[str, Version] = {}

    def add(name: str, value: "JSON | Unknown", maker: int | None) -> Version:
        older = last.get(name)
        version = Version(name, older.number + 1 if older else 1, value, maker, older)
        last[name] = version
        flow.versions.append(version)
        return version

    for index, step in enumerate(steps):
        for name, value in _named(step.get("inputs", [])):
            version, known = newest.get(name), newest
            if version is not None and _is_later(version, steps, step):
                version, known = earlier.get(name), earlier
            if version is None or not _may_be(version, value):
                version = known[name] = add(name, value, None)
            flow.uses.append((index, version))
        for name, value in _named(step.get("outputs", [])):
            newest[name] = add(name, value, index)
    return flow


def _is_later(version: Version, steps: Sequence[Step], user: Step) -> bool:
    """Say whether a version's maker began after a step had ended."""
    if version.maker is None:
        return False
    return began(steps[version.maker]) > ended(user)


def _named(side: list[str] | dict[str, JSON]) -> Iterable[tuple[str, "JSON | Unknown"]]:
    if isinstance(side, dict):
        return side.items()
    return ((name, UNKNOWN) for name in dict.fromkeys(side))


def _may_be(version: Version, value: "JSON | Unknown") -> bool:
    """Say whether this value can be the version's; what it is told first, it keeps."""
    if isinstance(value, Unknown):
        return True
    if isinstance(version.value, Unknown):
        version.value = value
        return True
    return canonical_json.dumps(version.value) == canonical_json.dumps(value)
