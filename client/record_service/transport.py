"""One request to the service: authenticated, and tried again where that is safe.

Safe is a GET, and a POST with an Idempotency-Key. Any request is tried again when it was refused
unread: 429, or no connection at all.
"""

from __future__ import annotations

import platform
import random
import re
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Callable
from urllib.parse import urlsplit

import requests

from record_service.errors import Problem, RecordsError, Unreachable, problem

CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
_LONGEST_BACKOFF = 5.0
_KEY = re.compile(r"[\x21-\x7e]+")
# The job behind it has given up: asked again it answers the same.
_FINAL = frozenset({"evidence-pack-failed"})
_STILL_RUNNING = "idempotency-key-in-use"

Query = Mapping[str, Any]


class Transport:
    """Sends requests to one service with one key; safe for threads, each with its connection.

    `patience` is for how many seconds a request is tried again; `sleep` waits so many seconds.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        patience: float = 20.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.base_url = _checked_url(base_url)
        # requests would quote it in its own complaint.
        if _KEY.fullmatch(key) is None:
            raise RecordsError("The API key is not one: it has characters that no key has.")
        self.patience = patience
        self.sleep = sleep
        self._key = key
        self._local = threading.local()
        self._resume_at = 0.0

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> requests.Response:
        """Return a good answer (2xx).

        Raises `Problem` for any other, and `Unreachable` if none came for `patience` seconds.
        """
        sent = {**({"Content-Type": "application/json"} if body is not None else {})}
        sent.update(headers or {})
        safe = method == "GET" or "Idempotency-Key" in sent
        give_up_at = time.monotonic() + self.patience
        attempt = 0
        while True:
            error, wait = self._try(method, path, query, body, sent, stream, safe)
            if isinstance(error, requests.Response):
                return error
            wait = _backoff(attempt) if wait is None else wait
            if wait < 0 or time.monotonic() + wait > give_up_at:
                raise error
            self.sleep(wait)
            attempt += 1

    def _try(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        headers: Mapping[str, str],
        stream: bool,
        safe: bool,
    ) -> tuple[requests.Response | RecordsError, float | None]:
        """Return a good answer; else the error, and after how long to try again.

        None is as usual, below 0 never.
        """
        self._keep_to_rate()
        try:
            answer = self._session().request(
                method,
                self.base_url + path,
                params=query,
                data=body,
                headers=dict(headers),
                stream=stream,
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                allow_redirects=False,
            )
        except requests.exceptions.ConnectTimeout:
            return self._unreachable("it does not accept a connection"), None
        except requests.ConnectionError as error:
            return self._unreachable(_reason(error)), None if safe or _unsent(error) else -1
        except requests.Timeout:
            return self._unreachable("its answer takes too long"), None if safe else -1
        except requests.RequestException as error:
            return self._unreachable(type(error).__name__), None if safe else -1
        self._note_rate(answer)
        if answer.ok and answer.status_code < 300:
            return answer, None
        return self._refused(answer, safe)

    def _refused(self, answer: requests.Response, safe: bool) -> tuple[RecordsError, float | None]:
        if 300 <= answer.status_code < 400:
            to = answer.headers.get("Location", "elsewhere")
            return RecordsError(
                f"{self.base_url} leads to {to}: set SERVICE_BASE_URL to the service itself."
            ), -1
        refused = _read_problem(answer)
        status, after = refused.status, refused.retry_after
        if status == 429 or (safe and status >= 500 and refused.slug not in _FINAL):
            return refused, after
        # The conflicts that end by themselves.
        if safe and status == 409 and (after is not None or refused.slug == _STILL_RUNNING):
            return refused, after
        return refused, -1

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            # By itself requests would put what a .netrc says in place of the key.
            session.auth = self._authenticate
            agent = f"record-service-client/{version()} Python/{platform.python_version()}"
            session.headers["User-Agent"] = agent
        return session

    def _authenticate(self, prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        prepared.headers["Authorization"] = f"Bearer {self._key}"
        return prepared

    def _unreachable(self, why: str) -> Unreachable:
        return Unreachable(
            f"{self.base_url} cannot be reached: {why}. Is SERVICE_BASE_URL right, and is it up?"
        )

    def _note_rate(self, answer: requests.Response) -> None:
        """Note when the window ends, if this request was the last that it allows."""
        if answer.headers.get("RateLimit-Remaining") == "0":
            reset = _seconds(answer.headers.get("RateLimit-Reset"))
            self._resume_at = time.monotonic() + min(reset or 0.0, self.patience)

    def _keep_to_rate(self) -> None:
        left = self._resume_at - time.monotonic()
        if left > 0:
            self.sleep(left)


def version() -> str:
    """Return the installed version of this package; `checkout` where it is not installed."""
    try:
        return metadata.version("record-service-client")
    except metadata.PackageNotFoundError:
        return "checkout"


def _checked_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise RecordsError(
            "SERVICE_BASE_URL is no address of a service, such as https://records.example.com."
        )
    return text.rstrip("/")


def _backoff(attempt: int) -> float:
    """Return the wait before the next attempt: doubling, with jitter."""
    jitter = random.uniform(0.5, 1.0)  # noqa: S311  # no secret
    return jitter * min(0.25 * 2.0 ** min(attempt, 10), _LONGEST_BACKOFF)


def _read_problem(answer: requests.Response) -> Problem:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        # What stands before the service answers in its own way.
        body = {"title": f"HTTP status {answer.status_code}", "detail": answer.reason or ""}
    return problem(answer.status_code, body, _seconds(answer.headers.get("Retry-After")))


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def _unsent(error: requests.ConnectionError) -> bool:
    """Say whether not even a connection was made, so nothing of the request was sent."""
    inner = error.args[0] if error.args else None
    return "NewConnectionError" in type(getattr(inner, "reason", inner)).__name__


def _reason(error: requests.ConnectionError) -> str:
    inner = error.args[0] if error.args else error
    reason = getattr(inner, "reason", inner)
    if isinstance(error, requests.exceptions.SSLError):
        return f"TLS: {reason}"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy of HTTP_PROXY, HTTPS_PROXY does not answer"
    if "NameResolution" in type(reason).__name__:
        return "its name is not known"
    return "the connection is refused" if _unsent(error) else "the connection broke"
