"""What the command prints: tables on a terminal, plain lines in a pipe, JSON where it is asked for.

Agents write what stands in many fields, so characters that steer a terminal are shown by number:
here alone the command writes to one.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO, Callable, cast

import click

Json = dict[str, Any]
# A column's heading, and where its value stands in a row: `last_attempt.outcome`.
Columns = Mapping[str, str]

# Rows by which the widths of a table are chosen.
_MEASURED = 200
_NARROWEST = 8
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z")
# Control characters, marks and overrides of direction, separators of lines, and what is invisible;
# what joins letters and emoji stays.
_STEERS = (
    "\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_HIDDEN = re.compile(f"[{_STEERS}]")
# What a terminal gets besides: ends of lines, tabs between cells, and colours.
_HIDDEN_FROM_TERMINALS = re.compile(rf"(\x1b\[[0-9;]*m|[\n\t])|[{_STEERS}]")
_GOOD = frozenset({"succeeded", "intact", "enabled", "open", "valid", "integrated", "active"})
_BAD = frozenset({"failed", "dead", "disabled", "critical", "high", "invalid", "revoked"})
_WAITING = frozenset({"retrying", "pending", "held", "paused", "queued", "medium", "cancelled"})


class _Terminal(io.RawIOBase):
    """A terminal as a file of bytes: what is UTF-8 is shown, what would steer it by its number."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, piece: Any) -> int:
        """Show a piece of an answer's body, which no line of ours coloured."""
        text = self._decoder.decode(bytes(piece))
        sys.stdout.write("\n".join(map(_escaped, text.split("\n"))))
        return len(piece)

    def flush(self) -> None:
        """Flush the terminal."""
        sys.stdout.flush()


def standard_output() -> BinaryIO:
    """Return standard output for bytes: exact in a file or pipe, harmless on a terminal."""
    return cast(BinaryIO, _Terminal()) if sys.stdout.isatty() else sys.stdout.buffer


class Output:
    """Prints for one run of the command; `json` is set by `--json`."""

    def __init__(self) -> None:
        self.json = False

    @property
    def terminal(self) -> bool:
        """Whether a person reads what is printed."""
        return sys.stdout.isatty()

    def rows(self, rows: Iterable[Json], columns: Columns) -> None:
        """Print a table as its rows come."""
        if not self.terminal:
            for row in rows:
                self.text("\t".join(plain(_at(row, path)) for path in columns.values()))
            return
        iterator = iter(rows)
        first = list(islice(iterator, _MEASURED))
        if not first:
            self.note("Nothing found.")
            return
        widths = _widths(columns, first)
        self.text(self.style(_line(list(columns), widths), bold=True))
        for row in chain(first, iterator):
            cells = [_shown(_at(row, path)) for path in columns.values()]
            self.text(self._colour(_line(cells, widths), cells))

    def item(self, item: Mapping[str, Any]) -> None:
        """Print one thing: its fields, a line each."""
        if self.json:
            self.document(item)
            return
        width = max(map(len, item), default=0)
        for name, value in item.items():
            if self.terminal:
                self.text(f"{self.style(name.ljust(width), bold=True)}  {_shown(value)}")
            else:
                self.text(f"{name}\t{plain(value)}")

    def document(self, value: Any) -> None:
        """Print JSON, on one line unless a person reads it."""
        indent = 2 if self.terminal else None
        text = json.dumps(value, ensure_ascii=_lacks_characters(), indent=indent)
        self.text(text)

    def array(self, rows: Iterable[Json], cursor: Callable[[], str | None]) -> None:
        """Print a list as the API answers it, however long: rows as they come, then the cursor."""
        comma = ""
        self.text('{"data": [', end="")
        for row in rows:
            self.text(comma + _json(row), end="")
            comma = ", "
        self.text(f'], "next_cursor": {json.dumps(cursor())}}}')

    def line(self, value: Any, text: str) -> None:
        """Print one line of a stream: JSON if asked for, else the text; at once."""
        self.text(_json(value) if self.json else text)
        sys.stdout.flush()

    def text(self, text: str, end: str = "\n") -> None:
        """Print lines, cells or a piece of JSON: all that the command writes passes here."""
        click.echo(_shielded(text) if self.terminal else text, nl=False)
        click.echo(end, nl=False)

    def ask(self, question: str) -> bool:
        """Ask the person at the keyboard, on standard error."""
        return click.confirm(_escaped(question), err=True)

    def aside(self, tell: Callable[..., object], *what: Any) -> None:
        """Print what may be lost in a closed pipe: the command's work or exit code counts."""
        try:
            tell(*what)
        except BrokenPipeError:
            discard_output()

    def note(self, text: str) -> None:
        """Tell the person at the keyboard, on standard error."""
        click.echo(_escaped(text), err=True)

    def style(self, text: str, **style: Any) -> str:
        """Colour a text, where there may be colour."""
        return click.style(text, **style) if self.colours else text

    @property
    def colours(self) -> bool:
        """Whether a terminal reads this, and NO_COLOR (https://no-color.org) does not forbid it."""
        dumb = os.environ.get("TERM") == "dumb"
        return self.terminal and not dumb and not os.environ.get("NO_COLOR")

    def _colour(self, line: str, cells: Sequence[str]) -> str:
        for cell in cells:
            for names, colour in ((_GOOD, "green"), (_BAD, "red"), (_WAITING, "yellow")):
                if cell in names:
                    # Between other cells: the word alone, not where it is part of a title.
                    pattern = rf"(?:(?<=  )|^){cell}(?=  |$)"
                    return re.sub(pattern, self.style(cell, fg=colour), line, count=1)
        return line


def discard_output() -> None:
    """Discard further output, buffered output included: the reader (`head`) closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain(value: Any) -> str:
    """Write a value for a program: whole, on one line, without tabs."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return _escaped(",".join(value))
    return _json(value)


def _shown(value: Any) -> str:
    """Write a value for a person: a time to the second, nothing as `-`."""
    text = plain(value)
    return _TIME.sub(r"\1 \2", text) if text else "-"


def _json(value: Any) -> str:
    """Write JSON on one line, which means the same and steers no terminal."""
    return _escaped(json.dumps(value, ensure_ascii=_lacks_characters()))


def _lacks_characters() -> bool:
    """Say whether standard output's encoding has not every character, as Latin-1 has not."""
    return "utf" not in (sys.stdout.encoding or "").lower()


def _escaped(text: str) -> str:
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _shielded(text: str) -> str:
    return _HIDDEN_FROM_TERMINALS.sub(lambda match: match[1] or json.dumps(match[0])[1:-1], text)


def _at(row: Json, path: str) -> Any:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _widths(columns: Columns, rows: Sequence[Json]) -> list[int]:
    """Return the widths of a table's columns; where all do not fit, the widest give way."""
    widths = [
        max(len(title), *(len(_shown(_at(row, path))) for row in rows))
        for title, path in columns.items()
    ]
    room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _NARROWEST:
        widest = widths.index(max(widths))
        widths[widest] = max(_NARROWEST, widths[widest] - (sum(widths) - room), _second(widths) - 1)
    return widths


def _second(widths: Sequence[int]) -> int:
    return sorted(widths)[-2] if len(widths) > 1 else 0


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = (
        cell if len(cell) <= width else f"{cell[: width - 1]}…"
        for cell, width in zip(cells, widths)
    )
    return "  ".join(cell.ljust(width) for cell, width in zip(cut, widths)).rstrip()
