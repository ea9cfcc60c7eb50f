"""How the demo speaks, and how it claims: a claim that does not hold ends it."""

from collections.abc import Iterable, Sequence
from typing import TextIO


class Unmet(Exception):
    """Something that the demo claims is not so; the text is one line that says what."""


class Telling:
    """Writes the demo's narrative, a line at a time, and counts the claims that held."""

    def __init__(self, target: TextIO) -> None:
        self.claims = 0
        self._target = target

    def chapter(self, title: str) -> None:
        """Begin a part of the narrative."""
        self._write(f"\n{title}\n{'-' * len(title)}")

    def say(self, text: str = "") -> None:
        """Write a plain line."""
        self._write(f"  {text}" if text else "")

    def table(self, rows: Iterable[Sequence[object]]) -> None:
        """Write rows in columns; numbers stand to the right."""
        lines = list(rows)
        widths = [max(len(str(cell)) for cell in column) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = [
                f"{cell:>{width}}" if isinstance(cell, int) else f"{cell:<{width}}"
                for cell, width in zip(line, widths, strict=True)
            ]
            self.say(f"  {'  '.join(cells)}".rstrip())

    def claim(self, holds: object, text: str, found: object = "") -> None:
        """State what has been checked; `found` says what was there instead.

        Raises `Unmet` if it does not hold.
        """
        if not holds:
            raise Unmet(f"{text} (found: {found})" if found != "" else text)
        self.claims += 1
        self._write(f"  ok  {text}")

    def _write(self, line: str) -> None:
        self._target.write(f"{line}\n")
        self._target.flush()
