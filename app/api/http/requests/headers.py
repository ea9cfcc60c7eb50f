"""What a request's headers say: its id, the client's address, and how long the client waits."""

import re
from dataclasses import dataclass
from typing import Any

from flask import g, request

from app.api.http.services import services
from app.lib import forwarded
from app.lib.crypto.randomness import random_bytes

# In seconds: a web process that is told to stop has 20 seconds to answer.
LONGEST_WAIT = 15.0
LONGEST_WAIT_WITHOUT_KEY = 10.0
REQUEST_ID = "X-Request-ID"
_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


def request_id() -> str:
    """Return this request's id: the caller's `X-Request-ID` if it is well-formed, else a new id."""
    found: str | None = g.get("request_id")
    if found is None:
        sent = request.environ.get("HTTP_X_REQUEST_ID", "")
        g.request_id = found = sent if _REQUEST_ID_FORM.fullmatch(sent) else random_bytes(16).hex()
    return found


def client_address() -> str:
    """Return the client's address, as trusted proxies forward it."""
    found: str | None = g.get("address")
    if found is None:
        settings = services().settings
        name = settings.proxy_header
        environ = request.environ
        sent = environ.get(f"HTTP_{name.upper().replace('-', '_')}", "")
        peer = environ.get("REMOTE_ADDR") or ""
        g.address = found = forwarded.client_address(peer, name, sent, settings.trusted_proxies)
    return found


def client_network() -> str:
    """Return what a request without a key is rate limited by: an IPv4 address, or an IPv6 /64."""
    return forwarded.network(client_address())


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
    preferences: dict[str, str] = {}
    for each in ",".join(request.headers.getlist("Prefer")).split(","):
        # Parameters, which follow a semicolon, are ignored; the first of a repeated name counts.
        name, _, value = each.partition(";")[0].partition("=")
        preferences.setdefault(name.strip(" \t").lower(), value.strip(' \t"'))
    wait = preferences.get("wait", "")
    if re.fullmatch("[0-9]{1,9}", wait):
        seconds = min(int(wait), int(longest))
        return Patience(seconds, f"wait={seconds}")
    if "respond-async" in preferences:
        return Patience(0, "respond-async")
    return Patience(default)
