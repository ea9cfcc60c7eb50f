"""`Recorder`: the way in for code that runs an agent."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial, wraps
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast, final, overload

from record_service import values
from record_service.errors import RecordsError
from record_service.recorder import places
from record_service.recorder import spool as spools
from record_service.recorder.handles import Record, Session
from record_service.recorder.places import Owner
from record_service.recorder.sender import Sender
from record_service.recorder.shapes import Shapes, run_id
from record_service.recorder.spool import Row, Spool
from record_service.recorder.steps import Step

if TYPE_CHECKING:
    from record_service.recorder.delivery import Courier

log = logging.getLogger("record_service")

_Function = TypeVar("_Function", bound=Callable[..., Any])
_UNKNOWN = "unknown"
_REOPEN_SECONDS = 1.0
_LOG_SECONDS = 60.0
_MOST_OWED = 1000
_FORK_SECONDS = 5.0
_LIVE: weakref.WeakSet[Recorder] = weakref.WeakSet()
# What a forked child has of its parent's: SQLite forbids to use it there, and to close it.
_INHERITED: list[Any] = []


@final
class Recorder:
    """Records what an agent does, without making it wait or fail; threads and tasks may share it.

    `base_url` and `key` are by default SERVICE_BASE_URL and SERVICE_API_KEY. `mask(text)`, or
    `mask(text, path)`, returns each text as it may be stored, before it touches the disk. `spool`
    is a folder (RECORD_SERVICE_SPOOL), which holds `most_bytes`. `strict` lets errors through.
    Raises `RecordsError` without an address.
    """

    def __init__(
        self,
        agent: str,
        principal: str = _UNKNOWN,
        *,
        mask: Callable[..., str] | None = None,
        version: str = "",
        base_url: str | None = None,
        key: str | None = None,
        spool: str | os.PathLike[str] | None = None,
        most_bytes: int = spools.MOST_BYTES,
        strict: bool = False,
        exit_timeout: float = 2.0,
    ) -> None:
        self._base_url = (base_url or os.environ.get("SERVICE_BASE_URL", "")).strip().rstrip("/")
        if not self._base_url:
            raise RecordsError(
                "Set SERVICE_BASE_URL to the service's address, such as http://127.0.0.1:8000."
            )
        self._key = (key or os.environ.get("SERVICE_API_KEY", "")).strip()
        self.agent = values.text(agent, 200, _UNKNOWN)
        self.principal = values.text(principal, 200, _UNKNOWN)
        self.version = version
        self.strict = strict
        self.exit_timeout = exit_timeout
        self.current_session: ContextVar[Session | None] = ContextVar("session", default=None)
        self.current_step: ContextVar[Step | None] = ContextVar("step", default=None)
        self.shapes = Shapes(mask, strict=strict)
        self._folder = spool
        self._most_bytes = most_bytes
        digest = sha256(self._key.encode()).hexdigest()
        self._owner = Owner(self._base_url, digest, self.agent, from_environment=key is None)
        self.dropped = self._logged_dropped = 0
        self._begin()
        _LIVE.add(self)
        with self._opening:
            self._open()
        # What processes before this one left is sent at once.
        self._sender.wake()

    def _begin(self) -> None:
        """Begin in this process, with nothing of another's."""
        self.epoch = object()
        self._opening = threading.RLock()
        self._spool: Spool | None = None
        self._opened_at = -_REOPEN_SECONDS
        self._closed = False
        self._refusal: Exception = OSError("The spool is not open.")
        self._owed: dict[str, list[Row]] = {}
        self._logged_at = -_LOG_SECONDS
        self._ambient: Session | None = None
        self.appended = self._left = 0
        self._sender = Sender(self._owner, lambda: self._spool, self._settle, self._courier)

    @property
    def recorder(self) -> Recorder:
        """Itself, as sessions, records and steps name it."""
        return self

    # --- what agents call ---

    def session(
        self,
        external_id: str | None = None,
        *,
        principal: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """Return a session, for `with` or not.

        With an external id it is a conversation, which stays open; without one it is a single run,
        and the end of its `with` completes it.
        """
        who = self.principal if principal is None else values.text(principal, 200, _UNKNOWN)
        return Session(self, external_id, who, title, metadata)

    @overload
    def tool(self, function: _Function) -> _Function: ...

    @overload
    def tool(self, *, name: str | None = None) -> Callable[[_Function], _Function]: ...

    def tool(self, function: _Function | None = None, *, name: str | None = None) -> Any:
        """Decorate a function or coroutine function: each call is a step `execute_tool`.

        Outside of any record it is a record of its own. Arguments and result are recorded.
        """
        if function is None:
            return partial(self._tool, name=name)
        return self._tool(function, name)

    def _tool(self, function: _Function, name: str | None) -> _Function:
        called = function
        try:
            signature = inspect.signature(function)
        except ValueError:
            # Functions in C may not say what they take.
            signature = inspect.signature(lambda *arguments, **options: None)
        said = str(name or getattr(function, "__name__", "tool"))
        if inspect.iscoroutinefunction(function):

            @wraps(called)
            async def call_async(*arguments: Any, **options: Any) -> Any:
                with self._call(said, signature, arguments, options) as step:
                    step.outputs = result = await called(*arguments, **options)
                return result

            return cast(_Function, call_async)

        @wraps(called)
        def call(*arguments: Any, **options: Any) -> Any:
            with self._call(said, signature, arguments, options) as step:
                step.outputs = result = called(*arguments, **options)
            return result

        return cast(_Function, call)

    def _call(
        self, name: str, signature: inspect.Signature, arguments: Any, options: Any
    ) -> Step | Record:
        try:
            inputs = dict(signature.bind(*arguments, **options).arguments)
        except TypeError:
            # The call itself will say so.
            inputs = {"arguments": arguments, **options}
        if next(iter(signature.parameters), "") in ("self", "cls"):
            inputs.pop(next(iter(signature.parameters)), None)
        return self.step(name, kind="execute_tool", inputs=inputs)

    def step(self, name: str, *, kind: str = "step", inputs: Any = None) -> Step | Record:
        """Return a step of the current record; outside of any, a record of the current session."""
        above = self.current_step.get()
        if above is not None:
            return above.record.step(name, kind=kind, inputs=inputs)
        return self.here().record(kind, name, inputs=inputs)

    def here(self) -> Session:
        """Return the current session, else one of this process."""
        found = self.current_session.get() or self._ambient
        if found is None:
            found = self._ambient = self.session(f"process-{run_id()}")
        return found

    def flush(self, timeout: float | None = 10.0) -> bool:
        """Wait until all that ended is at the service; say whether it is, within these seconds."""
        return self._sender.flush(timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Send what is left, for as long as that works, and end; say whether nothing is left.

        What is left stays in the spool for the next process. Later calls record nothing.
        """
        if self._closed:
            return True
        is_empty = self._sender.flush(timeout, patient=False)
        self._closed = True
        self._refusal = RecordsError("The recorder is closed.")
        # One that hangs in a request ends with the process; what it sent is known by its key. Not
        # within `_opening`: a flush elsewhere holds the sender while it tries to open the spool.
        self._sender.stop(min(timeout, 1.0))
        with self._opening:
            if self._spool is not None:
                self._left = self._spool.pending
                self._spool.close()
                self._spool = None
        return is_empty

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> dict[str, Any]:
        """Return what was appended, dropped, sent and refused since this process began.

        `pending` waits in this process's file, and `error` says why; `bytes` are those of all.
        """
        spool = self._spool
        found: dict[str, Any] = {
            "appended": self.appended,
            "dropped": self.dropped + self.shapes.dropped,
            "owed": len(self._owed),
            "pending": self._left if spool is None else spool.pending,
            "spool": None if spool is None else str(spool.path.parent),
            "bytes": 0 if spool is None else spool.bytes + spool.others,
            "most_bytes": self._most_bytes,
            "dead_letters": 0 if spool is None else spool.dead,
            "corrupt_files": 0 if spool is None else spool.corrupt,
            **self._sender.stats(),
        }
        if spool is None and found["disk_error"] is None:
            found["disk_error"] = str(self._refusal)
        return found

    # --- what sessions, records and steps call ---

    def append(self, rows: list[Row]) -> None:
        """Append entries. Raises what the disk says where it takes none."""
        if not self.try_append(rows):
            self.raise_refusal()

    def try_append(self, rows: list[Row]) -> bool:
        """Append entries; say whether the disk took them."""
        spool = self._spool
        if spool is None:
            with self._opening:
                spool = self._open()
            if spool is None:
                return False
        try:
            spool.append(rows)
        except (sqlite3.Error, OSError) as error:
            self._refusal = error
            if not spool.is_refused:
                spool.is_refused = True
                self._sender.tend_soon()
            return False
        before = self.appended
        self.appended += len(rows)
        if before // spools.TEND_EVERY != self.appended // spools.TEND_EVERY:
            self._sender.tend_soon()
        if any(row.ready for row in rows):
            self._sender.wake()
        return True

    def raise_refusal(self) -> None:
        """Raise why the disk took nothing."""
        raise self._refusal

    def owe(self, run: str, rows: list[Row]) -> None:
        """Keep the end of a record in memory until the disk takes it."""
        if len(self._owed) >= _MOST_OWED:
            self.note_dropped(self._refusal)
            return
        self._owed[run] = rows
        self._sender.wake()

    def note_dropped(self, error: Exception) -> None:
        """Count what is not recorded, and say so in the log, at most once a minute."""
        self.dropped += 1
        if time.monotonic() - self._logged_at > _LOG_SECONDS:
            self._logged_at = time.monotonic()
            count, self._logged_dropped = self.dropped - self._logged_dropped, self.dropped
            log.error("Not recorded (%d since the last such line): %r", count, error)

    # --- the spool ---

    def _open(self) -> Spool | None:
        """Return the spool, opened if it can be, which is tried once a second."""
        if self._spool is not None or self._closed:
            return self._spool
        if time.monotonic() - self._opened_at < _REOPEN_SECONDS:
            return None
        self._opened_at = time.monotonic()
        try:
            told = self._folder
            place = places.folder() if told is None else places.private(Path(told))
            self._spool = spools.own(place, self._owner, self._most_bytes)
        except (sqlite3.Error, OSError, RecordsError) as error:
            if str(error) != str(self._refusal):
                log.error("The spool cannot be opened: %s", error)
            self._refusal = error
        return self._spool

    def _settle(self) -> bool:
        """Write what the disk did not take before; say whether nothing is left of it."""
        for run in list(self._owed):
            # Taken first: a flush settles beside the sender, and none may be written twice.
            rows = self._owed.pop(run, None)
            if rows is not None and not self.try_append(rows):
                self._owed[run] = rows
                return False
        return True

    def _courier(self) -> Courier:
        # Imported by the thread alone: what it stands on takes longest to import.
        from record_service.recorder.delivery import Courier  # noqa: PLC0415
        from record_service.transport import Transport  # noqa: PLC0415

        return Courier(Transport(self._base_url, self._key, patience=0.0))

    # --- forks ---

    def before_fork(self) -> None:
        """Hold still: a child must not find SQLite in the middle of something."""
        self._held = [each for each in self._locks() if each.acquire(timeout=_FORK_SECONDS)]

    def _locks(self) -> list[Any]:
        return [] if self._spool is None else [self._spool.reading, self._spool.lock]

    def after_fork(self) -> None:
        """Go on, in the parent."""
        for each in reversed(self._held):
            each.release()

    def in_child(self) -> None:
        """Begin anew, with a file, a thread and locks of the child's own, when it first appends."""
        places.leave_locks()
        if self._spool is not None:
            _INHERITED.append(self._spool)
        _INHERITED.append(self._sender)
        was_closed = self._closed
        self._begin()
        self._closed = was_closed


def _each(act: Callable[[Recorder], object]) -> Callable[[], None]:
    def run() -> None:
        for recorder in list(_LIVE):
            act(recorder)

    return run


atexit.register(_each(lambda recorder: recorder.close(recorder.exit_timeout)))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(Recorder.before_fork),
        after_in_parent=_each(Recorder.after_fork),
        after_in_child=_each(Recorder.in_child),
    )
