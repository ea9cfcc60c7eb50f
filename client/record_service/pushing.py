"""Pushing files as records, several at once, each exactly once however often it is run again."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from record_service.client import Client
from record_service.errors import Invalid, NotFound, RecordsError
from record_service.journal import Journal

# How long one file is tried: longer than a service takes to start again.
PATIENCE_SECONDS = 180.0
# The clocks of this machine and of the service differ by less.
_CLOCKS = timedelta(days=1)
# Refusals of one file, which say nothing of the others.
_OF_THE_FILE = (Invalid, NotFound)


@dataclass(frozen=True)
class Content:
    """How a file becomes a record's content; without a title it is the file's name."""

    session_id: str
    kind: str = "file"
    title: str | None = None
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Pushed:
    """What became of one file: its record, or why there is none."""

    path: str
    record_id: str | None = None
    error: RecordsError | None = None
    again: bool = False


class Unreadable(RecordsError):
    """A file is not what can be pushed."""


class Stopped(RecordsError):
    """The push was interrupted while a file waited for its next attempt."""


def body(path: str, raw: bytes, content: Content | None) -> bytes:
    """Return what is posted for a file: its own bytes, or a record whose content they are.

    JSON is passed on byte for byte, for nothing may be lost on the way. Raises `Unreadable`.
    """
    if content is None:
        if not isinstance(_json(raw), dict):
            raise Unreadable(
                f"{path}: this is no JSON object as POST /v1/records takes it; "
                "with --session any file is pushed as content."
            )
        return raw
    fields = {
        "session_id": content.session_id,
        "kind": content.kind,
        "title": content.title or _name(path),
        **({"labels": dict(content.labels)} if content.labels else {}),
    }
    start = json.dumps(fields, ensure_ascii=False).encode()[:-1]
    return start + b', "content": ' + _as_json(raw) + b"}"


def _name(path: str) -> str:
    """Return a file's name as text; bytes of it that are no UTF-8 are written by number."""
    return os.fsencode(Path(path).name).decode("utf-8", "backslashreplace")


def _json(raw: bytes) -> Any:
    """Read JSON; None if it is none."""
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _as_json(raw: bytes) -> bytes:
    """Write a file as JSON: an object or array as it is, text as a string, else base64."""
    if isinstance(_json(raw), (dict, list)):
        return raw
    try:
        return json.dumps(raw.decode("utf-8"), ensure_ascii=False).encode()
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(raw).decode()}).encode()


class Pusher:
    """Pushes files for one tenant; `at_once` requests are out at most."""

    def __init__(self, client: Client, journal: Journal, at_once: int = 4) -> None:
        self._client = client
        self._journal = journal
        self._at_once = at_once
        self._stop = threading.Event()
        client.transport.patience = max(client.transport.patience, PATIENCE_SECONDS)
        client.transport.sleep = self._sleep

    def push(self, paths: Iterable[str], content: Content | None) -> Iterator[Pushed]:
        """Yield what became of each file, as it is known.

        After an error that others would meet too, no more are sent.
        """
        out: dict[Future[str], tuple[str, str]] = {}
        with ThreadPoolExecutor(self._at_once) as pool:
            try:
                for path in paths:
                    found = self._known(path, content)
                    if isinstance(found, Pushed):
                        yield found
                        continue
                    key, sent = found
                    self._journal.begin(key)
                    out[pool.submit(self._send, key, sent)] = path, key
                    if len(out) >= 2 * self._at_once:
                        yield from self._answered(out)
                    if self._stop.is_set():
                        break
                while out:
                    yield from self._answered(out)
            finally:
                self._stop.set()
                for future, (_, key) in out.items():
                    if not future.cancel():
                        self._note(future, key)

    def _known(self, path: str, content: Content | None) -> Pushed | tuple[str, bytes]:
        """Return what became of a file before, or its key and what is to be posted."""
        try:
            if Path(path).is_fifo():
                raise Unreadable(f"{path}: this is a pipe; push it as standard input, `-`.")
            sent = body(path, Path(path).read_bytes(), content)
        except OSError as error:
            return Pushed(path, error=Unreadable(f"{path}: {error.strerror}."))
        except Unreadable as error:
            return Pushed(path, error=error)
        key = _key(path, sent)
        record = self._journal.record(key)
        if record is None:
            since = self._journal.stale_since(key)
            record = None if since is None else self._look_for(key, sent, since)
        return (key, sent) if record is None else Pushed(path, record, again=True)

    def _look_for(self, key: str, sent: bytes, since: float) -> str | None:
        """Find the record of a file whose answer never came; if there is none, it is new again."""
        wanted = json.loads(sent)
        start = datetime.fromtimestamp(since, timezone.utc) - _CLOCKS
        listed = self._client.records.list(
            session_id=wanted.get("session_id"),
            kind=wanted.get("kind"),
            since=start.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        for row in listed:
            if self._is_of(row, wanted) and not self._journal.knows(row["id"]):
                self._journal.finish(key, row["id"])
                return str(row["id"])
        self._journal.forget(key)
        return None

    def _is_of(self, record: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        if any(record[name] != wanted.get(name, record[name]) for name in ("title", "labels")):
            return False
        try:
            bundle = self._client.get(f"/v1/records/{record['id']}/bundle")
        except NotFound:
            # Expired, so it cannot be compared: a file that is missing would be pushed in vain.
            return True
        return bool(bundle.get("content") == wanted.get("content"))

    def _send(self, key: str, sent: bytes) -> str:
        return str(self._client.post("/v1/records", sent, key)["id"])

    def _answered(self, out: dict[Future[str], tuple[str, str]]) -> Iterator[Pushed]:
        done, _ = wait(out, return_when=FIRST_COMPLETED)
        for future in done:
            path, key = out.pop(future)
            result = self._note(future, key)
            if isinstance(result, str):
                yield Pushed(path, result)
                continue
            if not isinstance(result, _OF_THE_FILE):
                self._stop.set()
            yield Pushed(path, error=result)

    def _note(self, future: Future[str], key: str) -> str | RecordsError:
        """Write the outcome of a file down; return it. Waits for it."""
        try:
            record_id = future.result()
        except RecordsError as error:
            # Of such a file nothing was ever kept. Another refusal may have met the second attempt
            # at what the first one did, such as that of a key which ended between the two.
            if isinstance(error, _OF_THE_FILE):
                self._journal.forget(key)
            return error
        self._journal.finish(key, record_id)
        return record_id

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped("The push was ended; run it again, it goes on where it was.")


def _key(path: str, sent: bytes) -> str:
    """Name a file and all that is posted for it: its Idempotency-Key."""
    named = str(Path(path).resolve()).encode("utf-8", "surrogateescape")
    return "push-" + hashlib.sha256(b"%d:%s%s" % (len(named), named, sent)).hexdigest()
