"""A check's finding: its level, one sentence, and the remedy."""

import enum
from dataclasses import dataclass
from urllib.parse import urlsplit

_LONGEST_REASON = 300


class Level(enum.StrEnum):
    """How bad a finding is; the values are those of `--json`."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    `mend` is the command, or the step, that mends it; `see` is the heading's anchor in
    docs/operations.md, or a page with one (`setup.md#redis`).
    """

    level: Level
    sentence: str
    mend: str | None = None
    see: str | None = None


class NotChecked(Exception):
    """A check cannot run, because of what another check reports; the text says what."""


def ok(sentence: str) -> Finding:
    """Return a finding with which all is well."""
    return Finding(Level.OK, sentence)


def warning(sentence: str, mend: str, *, see: str | None = None) -> Finding:
    """Return a finding that an operator should act on, though the service works."""
    return Finding(Level.WARNING, sentence, mend, see)


def failed(sentence: str, mend: str, *, see: str | None = None) -> Finding:
    """Return a finding with which a part of the service does not work."""
    return Finding(Level.FAILED, sentence, mend, see)


def not_checked(why: str) -> Finding:
    """Return the finding of a check that did not run."""
    return Finding(Level.NOT_CHECKED, f"not checked: {why}")


def reason(error: BaseException) -> str:
    """Return what the first cause of an error says, on one line of at most 300 characters.

    For errors of drivers, which name hosts, roles and databases, and never a password.
    """
    while (cause := _cause(error)) is not None:
        error = cause
    text = " ".join(str(error).split())
    return text[:_LONGEST_REASON] or type(error).__name__


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def place(url: str) -> str:
    """Return scheme, host and port of a URL: user, password, path and query may be secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that cannot be read"
    host = parts.hostname or ""
    named = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{named}{port}"
