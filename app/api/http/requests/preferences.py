"""The `Prefer` header (RFC 7240): for how long a client waits for a job to end."""

import re
from dataclasses import dataclass
from typing import Any

from flask import request

# A web process that is told to stop is given 20 seconds to answer.
LONGEST_WAIT = 15.0
LONGEST_WAIT_WITHOUT_KEY = 10.0

# A name, perhaps with a value, as a token or quoted; what parameters follow changes neither. No
# repeat gives back (`*+`): white space fits in three, and each way to share it out would be tried.
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
    """How many seconds to wait, and what `Preference-Applied` says if that is done.

    `asked` is false for a client that said nothing: it has the default.
    """

    seconds: float
    applied: str = ""

    @property
    def asked(self) -> bool:
        """Whether the client said how long."""
        return bool(self.applied)


def patience(default: float, longest: float = LONGEST_WAIT) -> Patience:
    """Read how many seconds this request may wait. What cannot be read was not said (section 2)."""
    said = _said(",".join(request.headers.getlist("Prefer")))
    wait = said.get("wait", "")
    if re.fullmatch("[0-9]{1,9}", wait):
        seconds = min(int(wait), int(longest))
        return Patience(seconds, f"wait={seconds}")
    if "respond-async" in said:
        return Patience(0, "respond-async")
    return Patience(default)


def _said(header: str) -> dict[str, str]:
    """Return preferences by name; of one that is named twice the first counts."""
    found: dict[str, str] = {}
    for each in header.split(","):
        match = _PREFERENCE.fullmatch(each)
        if match is not None:
            found.setdefault(match[1].lower(), (match[2] or "").strip())
    return found
