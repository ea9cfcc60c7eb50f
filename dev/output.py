"""Output of the processes, in whole lines, each behind its process's name."""

import os
from pathlib import Path
from typing import TextIO

_COLOURS = (36, 33, 35, 32, 34, 31)
# A line without an end is passed on in pieces of this many bytes.
_LONGEST_LINE = 64 * 1024


class Output:
    """The one place where lines are written; coloured on a terminal only."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._colours: dict[str, int] = {}

    def say(self, name: str, text: str) -> None:
        """Write one line behind a name."""
        try:
            self._target.write(f"{self._label(name)} {text}\n")
            self._target.flush()
        except OSError:
            # The reader has gone, as with `make up | head`; the service goes on without one.
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._target.fileno())

    def _label(self, name: str) -> str:
        label = f"{name:<9} |"
        if not self._target.isatty():
            return label
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"\033[{colour}m{label}\033[0m"


class Lines:
    """Makes whole lines of the pieces in which a process's output arrives."""

    def __init__(self, name: str, output: Output) -> None:
        self._name = name
        self._output = output
        self._rest = b""

    def take(self, piece: bytes) -> None:
        """Pass on every line that is complete by now; an empty piece is the end."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if self._rest and (not piece or len(self._rest) >= _LONGEST_LINE):
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._output.say(self._name, line.decode("utf-8", "replace").rstrip("\r"))
