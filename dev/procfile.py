"""Reads a Procfile: which processes there are, and the command of each."""

import re
from pathlib import Path

from dev.refusal import CannotStart

_LINE = re.compile(r"(?P<name>[A-Za-z0-9_-]+):\s*(?P<command>\S.*)")


def read(path: Path) -> dict[str, str]:
    """Return the command of each process by its name, in the file's order.

    Raises `CannotStart` at a line that is neither `name: command`, a comment, nor empty.
    """
    commands = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise CannotStart(f"{path}, line {number}: this is not `name: command`")
        commands[match["name"]] = match["command"]
    return commands
