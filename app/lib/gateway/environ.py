"""An ASGI connection scope as a WSGI environ (PEP 3333; ASGI HTTP specification 2.3)."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

# CGI gives these two their own names (RFC 3875 sections 4.1.2, 4.1.3).
_CGI = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}
# granian writes 1.0 as 1.
_PROTOCOLS = {"1": "HTTP/1.0", "1.0": "HTTP/1.0"}

_FIXED: Mapping[str, Any] = {
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
    # The stream ends where the body does, whatever its length was declared to be.
    "wsgi.input_terminated": True,
}


# Few: whoever sends may invent them, and each may be long.
@lru_cache(maxsize=128)
def _name(raw: bytes) -> str:
    return _CGI.get(raw) or f"HTTP_{raw.decode('latin-1').upper().replace('-', '_')}"


def environ(scope: Mapping[str, Any], stream: object) -> dict[str, Any]:
    """Return the WSGI environ of an ASGI `http` scope, with `stream` as `wsgi.input`.

    A field name with an underscore is left out: it would be taken for one with a hyphen.
    """
    host, port = scope.get("server") or ("", "")
    query = scope["query_string"].decode("latin-1")
    path = scope["raw_path"].decode("latin-1")
    client = scope.get("client") or ("", "")
    made = {
        **_FIXED,
        "REQUEST_METHOD": scope["method"],
        "PATH_INFO": unquote_to_bytes(scope["raw_path"]).decode("latin-1"),
        "QUERY_STRING": query,
        # As gunicorn calls it: the target as it was sent.
        "RAW_URI": f"{path}?{query}" if query else path,
        "SERVER_PROTOCOL": _PROTOCOLS.get(scope["http_version"], "HTTP/1.1"),
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "REMOTE_ADDR": client[0],
        "REMOTE_PORT": str(client[1]),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": stream,
    }
    for raw, text in scope["headers"]:
        if b"_" not in raw:
            name = _name(raw)
            value = text.decode("latin-1")
            made[name] = f"{made[name]},{value}" if name in made else value
    return made
