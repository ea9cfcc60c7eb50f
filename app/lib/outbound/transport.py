"""HTTP by `requests` and urllib3, without what they do unasked.

urllib3 opens every connection through `_new_conn`, which is ours: there stands the SSRF guard, and
a test fails if it is gone round. TLS checks the certificate against the host's name, not against
the address that was dialled.
"""

import functools
import http.client
import socket
import time
from collections.abc import Mapping
from typing import Any, cast

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse, HTTPResponse
from urllib3.util.retry import Retry

from app.lib.outbound.addresses import Target
from app.lib.outbound.attempt import MAX_BODY_BYTES, Stage, current
from app.lib.outbound.deadline_sockets import attempt_tls_context
from app.lib.outbound.dialing import Dialer

# A connection stays with the address that was vetted; an older one is not used again, so that a
# change in DNS is followed within a minute.
MAX_CONNECTION_SECONDS = 60.0

# Receivers that connections are kept to, and how many to each: together, the most that a process
# holds open without using.
MAX_RECEIVERS = 64
MAX_CONNECTIONS_EACH = 8


class _FinalAnswer(http.client.HTTPResponse):
    """Skips every interim answer (RFC 9110, section 15.2), not only 100 as the library does.

    A 103 taken for the answer would leave the true one on the connection, for the next to read.
    """

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, http.client.CONTINUE if 101 < status < 200 else status, reason


class _PlainConnection(HTTPConnection):
    """A connection that the dialer opens, and that the attempt under way limits."""

    encrypted = False
    response_class = _FinalAnswer

    def __init__(self, *args: Any, dialer: Dialer, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dialer = dialer
        self._opened_at = 0.0
        self._unsent: list[bytes] = []

    def _new_conn(self) -> socket.socket:
        return self._dialer.open(self.host, self.port, encrypted=self.encrypted)

    def connect(self) -> None:
        super().connect()
        self._opened_at = time.monotonic()
        attempt = current()
        attempt.reused = False
        attempt.stage = Stage.SENDING

    @property
    def is_connected(self) -> bool:
        """Whether the connection may take another request."""
        if current().fresh or time.monotonic() - self._opened_at > MAX_CONNECTION_SECONDS:
            return False
        return super().is_connected

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send head and body in one piece: it is quicker, and some receivers read only once."""
        self._unsent.clear()
        super().request(*args, **kwargs)
        super().send(b"".join(self._unsent))

    def putheader(self, header: str, *values: Any) -> None:  # type: ignore[override] # bytes too
        """Add one header, which is of our making: a line break in it is all that could harm.

        The library looks each name and value over with three regular expressions.
        """
        value = values[0]
        line = b"%b: %b" % (_bytes(header), _bytes(value))
        if b"\n" in line or b"\r" in line:
            raise ValueError("A header has no line breaks.")
        self._buffer.append(line)  # type: ignore[attr-defined] # http.client's own

    def send(self, data: Any) -> None:
        self._unsent.append(data)

    def getresponse(self) -> HTTPResponse:  # type: ignore[override] # urllib3's own does so too
        attempt = current()
        attempt.stage = Stage.WAITING
        response = super().getresponse()
        attempt.stage = Stage.READING
        attempt.allowance = MAX_BODY_BYTES
        return response


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


class _TLSConnection(_PlainConnection, HTTPSConnection):
    encrypted = True


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class Post(PreparedRequest):
    """A POST to a target that passed, to be sent as it is."""

    def __init__(self, target: Target, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__()
        self.target = target
        self.method = "POST"
        self.body = body
        # A plain dict does all that is asked of these headers, in a fraction of the time.
        plain = {**headers, "Content-Length": str(len(body))}
        self.headers = cast("CaseInsensitiveDict[str]", plain)


class Adapter(HTTPAdapter):
    """Sends a `Post` without the rest of `requests`: no proxy, cookie, redirect, retry or decoding.

    `requests` looks for these in each request; there are none in ours, so the hooks in which it
    looks answer at once. Idle connections are kept by receiver; the least recently used go first.
    """

    def __init__(self, dialer: Dialer, authorities: str | None) -> None:
        # With a total of False every error is raised as it is.
        super().__init__(max_retries=Retry(total=False))
        tls = attempt_tls_context(authorities)

        @functools.lru_cache(MAX_RECEIVERS)
        def pool(scheme: str, host: str, port: int) -> HTTPConnectionPool:
            options: dict[str, Any] = {"maxsize": MAX_CONNECTIONS_EACH, "dialer": dialer}
            if scheme == "https":
                return _TLSPool(host, port, ssl_context=tls, **options)
            return _PlainPool(host, port, **options)

        self._pool = pool

    def reach(self, target: Target) -> None:
        """Open a connection as for a request, within the attempt under way, and close it."""
        pool = self._pool(target.scheme, target.host, target.port)
        connection = pool.ConnectionCls(pool.host, pool.port, **pool.conn_kw)
        try:
            connection.connect()
        finally:
            connection.close()

    def close(self) -> None:
        """Let go of every idle connection."""
        self._pool.cache_clear()
        super().close()

    def get_connection_with_tls_context(
        self, request: PreparedRequest, *args: Any, **kwargs: Any
    ) -> HTTPConnectionPool:
        """Return the pool of the request's receiver."""
        target = cast(Post, request).target
        return self._pool(target.scheme, target.host, target.port)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave it to the one TLS context; this would load the roots for each connection."""

    def request_url(self, request: PreparedRequest, proxies: Any) -> str:
        """Return what to ask the receiver for."""
        return cast(Post, request).target.path

    def build_response(self, req: PreparedRequest, resp: BaseHTTPResponse) -> Response:
        """Wrap the answer without looking into it."""
        response = Response()
        response.raw = resp
        return response
