"""The report: a line a finding for people, or JSON for programs, and the exit status."""

import json
from collections import Counter
from collections.abc import Iterator

from app.manage.doctor.findings import Finding, Level
from app.manage.doctor.running import Results

_MARKS = {
    Level.OK: "ok  ",
    Level.WARNING: "warn",
    Level.FAILED: "FAIL",
    Level.NOT_CHECKED: "skip",
}
_PAGE = "operations.md"


def lines(results: Results) -> Iterator[str]:
    """Yield a line for each finding, and one that counts them."""
    counted: Counter[Level] = Counter()
    for name, found in results.items():
        for each in found:
            counted[each.level] += 1
            yield _printable(f"{_MARKS[each.level]}  {name}: {each.sentence}{_mend(each)}")
    yield ", ".join(f"{counted[level]} {level.replace('_', ' ')}" for level in Level)


def as_json(results: Results) -> str:
    """Return the same as one JSON object; its format is described in docs/operations.md."""
    found = [
        {
            "check": name,
            "status": each.level,
            "message": each.sentence,
            "mend": each.mend,
            "see": None if each.see is None else _page(each.see),
        }
        for name, findings in results.items()
        for each in findings
    ]
    status = Level.FAILED if exit_status(results) else Level.OK
    return json.dumps({"status": status, "findings": found}, indent=2)


def exit_status(results: Results) -> int:
    """Return 1 if something failed, else 0."""
    return int(any(each.level is Level.FAILED for found in results.values() for each in found))


def _mend(finding: Finding) -> str:
    see = None if finding.see is None else _page(finding.see)
    text = ", see ".join(filter(None, (finding.mend, see)))
    return f" → {text}" if text else ""


def _page(see: str) -> str:
    page, _, anchor = see.rpartition("#")
    return f"docs/{page or _PAGE}#{anchor}"


def _printable(text: str) -> str:
    """Leave out what could steer a terminal: some sentences quote drivers."""
    return "".join(each if each.isprintable() else " " for each in text)
