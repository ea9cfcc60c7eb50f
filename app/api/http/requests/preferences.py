"""The `Prefer` header (RFC 7240): for how long a client waits for a job to end."""

import re
from dataclasses import dataclass
from typing import Any

from flask import request

# In seconds: a web process that is told to stop has 20 seconds to answer.
LONGEST_WAIT = 15.0
LONGEST_WAIT_WITHOUT_KEY = 10.0

# A name with an optional value, as a token or quoted; parameters are ignored. The quantifiers are
# possessive (`*+`): white space fits in three of them, and backtracking would try every split.
_PREFERENCE = re.compile(
    r"""[ \t]*+([!#$%&'*+.^_`|~0-9A-Za-z-]++)"""
    r"""(?:[ \t]*+=[ \t]*+"?([^",;]*+)"?)?[ \t]*+(?:;[^,]*+)?""",
    re.ASCII,
)

PREFER: dict[str, Any] = {
    "in": "header",
    "name": "Prefer",
    "required": False,
    "description": "`wait=N`: wait up to N seconds (15 at most, 10 without a key), or "
    "`respond-async`: do not wait (RFC 7240).",
    "schema": {"type": "string"},
}


@dataclass(frozen=True)
class Patience:
    """How many seconds to wait, and the value of `Preference-Applied` if the wait is applied.

    `asked` is false for a client without a valid preference: the default applies.
    """

    seconds: float
    applied: str = ""

    @property
    def asked(self) -> bool:
        """Whether the client asked for a wait, or for none."""
        return bool(self.applied)


def patience(default: float, longest: float = LONGEST_WAIT) -> Patience:
    """Return how long this request may wait. Malformed preferences are ignored (section 2)."""
    preferences = _preferences(",".join(request.headers.getlist("Prefer")))
    wait = preferences.get("wait", "")
    if re.fullmatch("[0-9]{1,9}", wait):
        seconds = min(int(wait), int(longest))
        return Patience(seconds, f"wait={seconds}")
    if "respond-async" in preferences:
        return Patience(0, "respond-async")
    return Patience(default)


def _preferences(header: str) -> dict[str, str]:
    """Return preferences by name; the first of a repeated name counts."""
    found: dict[str, str] = {}
    for each in header.split(","):
        match = _PREFERENCE.fullmatch(each)
        if match is not None:
            found.setdefault(match[1].lower(), (match[2] or "").strip())
    return found
