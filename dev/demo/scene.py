"""What all chapters of the demo share: how it speaks, claims and waits, and the HTTP API."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import requests

from dev.demo.receivers import Receiver, TicketDesk

# Nothing here should take a tenth of it; a busy machine may.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.01
_LONGEST_POLL_SECONDS = 0.2

# An event that the session must cause: its type, and what the API answers for its finding or
# session.
Expected = list[tuple[str, dict[str, Any]]]


class Unmet(Exception):
    """Something that the demo claims is not so; the text is one line that says what."""


class Telling:
    """Writes the demo's narrative, a line at a time, and counts the claims that held."""

    def __init__(self, target: TextIO) -> None:
        self.claims = 0
        self._target = target

    def chapter(self, title: str) -> None:
        """Begin a part of the narrative."""
        self._write(f"\n{title}\n{'-' * len(title)}")

    def say(self, text: str = "") -> None:
        """Write a plain line."""
        self._write(f"  {text}" if text else "")

    def table(self, rows: Iterable[Sequence[object]]) -> None:
        """Write rows in columns; numbers stand to the right."""
        lines = list(rows)
        widths = [max(len(str(cell)) for cell in column) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = [
                f"{cell:>{width}}" if isinstance(cell, int) else f"{cell:<{width}}"
                for cell, width in zip(line, widths, strict=True)
            ]
            self.say(f"  {'  '.join(cells)}".rstrip())

    def claim(self, holds: object, text: str, found: object = "") -> None:
        """State what has been checked; `found` says what was there instead.

        Raises `Unmet` if it does not hold.
        """
        if not holds:
            raise Unmet(f"{text} (found: {found})" if found != "" else text)
        self.claims += 1
        self._write(f"  ok  {text}")

    def _write(self, line: str) -> None:
        self._target.write(f"{line}\n")
        self._target.flush()


class Api:
    """The public HTTP API for the holder of one key; whatever is not answered well is `Unmet`."""

    def __init__(self, base_url: str, key: str) -> None:
        self._base_url = base_url
        self._session = requests.Session()
        # It runs on this machine: a proxy of the environment would only be in the way.
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str, **query: Any) -> Any:
        """GET `path` and return the JSON of the answer."""
        return self._ask("GET", path, params=query).json()

    def download(self, path: str, media_type: str = "*/*") -> bytes:
        """GET `path` and return the bytes of the answer."""
        return self._ask("GET", path, headers={"Accept": media_type}).content

    def post(self, path: str, body: Any = None) -> Any:
        """POST `body` as JSON, or none, and return the JSON of the answer."""
        return self._ask("POST", path, json=body).json()

    def patch(self, path: str, body: Any) -> Any:
        """PATCH `path` and return the JSON of the answer."""
        return self._ask("PATCH", path, json=body).json()

    def delete(self, path: str) -> None:
        """DELETE `path`."""
        self._ask("DELETE", path)

    def _ask(self, method: str, path: str, **options: Any) -> requests.Response:
        try:
            answer = self._session.request(
                method, self._base_url + path, timeout=_PATIENCE_SECONDS, **options
            )
        except requests.RequestException as error:
            raise Unmet(f"{method} {path} is answered ({type(error).__name__})") from error
        if not answer.ok:
            raise Unmet(
                f"{method} {path} is answered well (it was {answer.status_code}: {answer.text})"
            )
        return answer


def anonymously(url: str) -> requests.Response:
    """GET a URL without a key; return any answer."""
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=_PATIENCE_SECONDS)


@dataclass(frozen=True)
class Scene:
    """The service, seen through its root admin key, and two receivers.

    `heed` is called while something is waited for; it raises if the demo must not go on. `now`
    rings an entry of the timetable. `tsa_ca_file` has the roots of the timestamp authority; None
    where none runs. `mail_folder` has the mails, as files.
    """

    telling: Telling
    api: Api
    base_url: str
    security: Receiver
    ticketing: Receiver
    desk: TicketDesk
    heed: Callable[[], None]
    now: Callable[[str], None]
    tsa_ca_file: Path | None
    mail_folder: Path

    def wait_for(self, what: str, condition: Callable[[], object]) -> float:
        """Wait until `condition()` is true and return the seconds it took.

        Raises `Unmet` after a minute, and whatever `heed` raises.
        """
        began = time.monotonic()
        while not condition():
            self.heed()
            waited = time.monotonic() - began
            if waited > _PATIENCE_SECONDS:
                raise Unmet(f"{what} within {_PATIENCE_SECONDS:g} s")
            # Backoff: polling without rest slows the service down.
            time.sleep(min(_LONGEST_POLL_SECONDS, max(_POLL_SECONDS, waited / 20)))
        return time.monotonic() - began


def in_ms(seconds: float) -> str:
    """Write a short time."""
    return f"{seconds * 1000:.0f} ms"
