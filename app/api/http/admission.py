"""How a request was admitted: the check is repeated after a wait, and between parts of a stream.

A key, session or link may end, and a record's visibility change, while its reader waits.
"""

from collections.abc import Callable
from typing import TypeAlias

from flask import g

Check: TypeAlias = Callable[[], object]


def admitted_by(check: Check) -> None:
    """Keep the check that admits this request, which raises what refuses it.

    It needs no request: a stream repeats it in other threads, after the request's context.
    """
    g.admitted_by = check


def check() -> Check:
    """Return the check of this request; one that passes where nothing had to be presented."""
    found: Check = g.get("admitted_by", _passes)
    return found


def again() -> None:
    """Repeat the check, as after any wait; a caller that is refused is none, in the log too."""
    try:
        g.found_again = check()()
    except Exception:
        g.pop("caller", None)
        raise


def found_again() -> object | None:
    """Return what the check has returned when it was repeated; None if it was not."""
    found: object | None = g.get("found_again")
    return found


def _passes() -> None:
    pass
