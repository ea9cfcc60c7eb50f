"""Small files of `NAME=value` lines that a shell can source and that only their owner can read."""

import os
import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from app.settings import variables
from dev.refusal import CannotStart


def read(path: Path) -> dict[str, str]:
    """Return the file's values by name; nothing when there is no file. Raises `CannotStart`."""
    try:
        return variables(path)
    except ValueError as error:
        raise CannotStart(f"{path} cannot be read: {error}") from error


def write(path: Path, values: Mapping[str, str]) -> None:
    """Replace the file at once, with mode 600: a reader finds the old one or the new one, whole.

    It gets the owner of its folder, so that root leaves nothing a user cannot read later.
    """
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    folder = path.parent.stat()
    descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if os.geteuid() == 0:
                os.fchown(file.fileno(), folder.st_uid, folder.st_gid)
            os.fsync(file.fileno())
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink()
        raise


def keep(path: Path, **fresh: Callable[[], str]) -> dict[str, str]:
    """Return the file's values, after adding those of `fresh` that it lacks, each made once."""
    kept = read(path)
    missing = {name: make() for name, make in fresh.items() if name not in kept}
    if missing:
        write(path, kept | missing)
    return kept | missing
