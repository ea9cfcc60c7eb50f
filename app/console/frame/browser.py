"""Request metadata of a browser: the session cookie, and the site that the request comes from."""

from urllib.parse import urlsplit

from flask import request
from werkzeug.wrappers import Response

from app.api.http.services import services
from app.core.keys.console_sessions import LONGEST, Token

HOME = "/console"
# Of what a cookie keeps while somebody signs in.
_LONGEST_PLACE = 1000
_LONGEST = int(LONGEST.total_seconds())


def read_token() -> Token | None:
    """Return the token of the browser's session, or None."""
    return Token.read(request.cookies.get(cookie_name("session"), ""))


def keep_token(response: Response, token: Token, *, by_provider: bool = False) -> None:
    """Set the cookies of a session: its token, and whether the provider signs in again."""
    set_cookie(response, "session", token.text, _LONGEST)
    if by_provider or returns_to_provider():
        set_cookie(response, "by", "provider" if by_provider else "", _LONGEST * by_provider)


def returns_to_provider() -> bool:
    """Return whether this browser's last session was of a person whom the provider signed in."""
    return request.cookies.get(cookie_name("by")) == "provider"


def forget(response: Response) -> None:
    """Delete the cookies of a session."""
    for name in ("session", "by"):
        set_cookie(response, name, "", 0)


def set_cookie(response: Response, name: str, value: str, seconds: int) -> None:
    """Set a cookie that no script, no other site and no subdomain can read or write.

    `seconds` of 0 deletes it.
    """
    response.set_cookie(
        cookie_name(name),
        value,
        max_age=seconds,
        path="/",
        secure=_is_https(),
        httponly=True,
        samesite="Lax",
    )


def cookie_name(name: str) -> str:
    """Return a cookie's full name: over https with the prefix `__Host-`."""
    return f"__Host-console_{name}" if _is_https() else f"console_{name}"


def refreshes_itself() -> bool:
    """Return whether a script sent the request (Fetch Metadata: `Sec-Fetch-Dest: empty`)."""
    return request.headers.get("Sec-Fetch-Dest") == "empty"


def is_from_here() -> bool:
    """Return whether our own page sent this request, by Fetch Metadata or else by its Origin.

    Browsers send Fetch Metadata to https and loopback only, and with a link's GET no Origin but a
    Referer. A request with none of these is foreign.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    sender = "Referer" if request.method in ("GET", "HEAD") else "Origin"
    scheme, _, rest = request.headers.get(sender, "").partition("://")
    ours = (request.host, urlsplit(services().settings.base_url).netloc)
    return scheme in ("http", "https") and rest.partition("/")[0] in ours


def go_on(asked: str, longest: int = _LONGEST_PLACE) -> str:
    """Return where to go on, as a form or a query asks: inside the console (no open redirect)."""
    inside = asked == HOME or asked.startswith((f"{HOME}/", f"{HOME}?"))
    good = inside and asked.isprintable() and "\\" not in asked and len(asked) <= longest
    return asked if good else HOME


def _is_https() -> bool:
    return services().settings.base_url.startswith("https:")
