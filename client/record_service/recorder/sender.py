"""The background thread of a recorder: sends what its spool holds, in batches, with backoff."""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from record_service.errors import Problem
from record_service.recorder import spool as spools
from record_service.recorder.places import Owner
from record_service.recorder.spool import Spool

if TYPE_CHECKING:
    from record_service.recorder.delivery import Courier, Outcome

log = logging.getLogger("record_service")

# A batch takes the interpreter's lock in few, short pieces: an event loop shares it.
_AT_ONCE, _BYTES_AT_ONCE = 100, 1024 * 1024
_LINGER = 0.05
_LOOK_SECONDS = 5.0
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.25, 30.0
_LONGEST_RETRY_AFTER = 3600.0


class Sender:
    """Sends for one recorder in one process; threads may call its public methods."""

    def __init__(
        self,
        owner: Owner,
        spool: Callable[[], Spool | None],
        settle: Callable[[], bool],
        courier: Callable[[], Courier],
    ) -> None:
        """`settle` writes what the disk did not take; it says whether nothing is left of that."""
        self.sent = self.dead = 0
        self.failures = 0
        self.error: str | None = None
        self.disk_error: str | None = None
        self._owner, self._spool, self._settle, self._connect = owner, spool, settle, courier
        self._courier: Courier | None = None
        self._tenant = ""
        self._backoff = 0
        self._undeleted: dict[Path, set[str]] = {}
        self._looked_at = -_LOOK_SECONDS
        self._changed = threading.Condition()
        self._woken = self._hurry = self._stopping = self._is_untended = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Say that there is something to send; costs microseconds."""
        if self._woken:
            return
        with self._changed:
            if self._thread is None and not self._stopping:
                thread = threading.Thread(
                    target=self._run, name="record-service-sender", daemon=True
                )
                # Where none can be started now, the next call tries again.
                thread.start()
                self._thread = thread
            self._woken = True
            self._changed.notify_all()

    def tend_soon(self) -> None:
        """Say that the spool's journal has grown."""
        with self._changed:
            self._is_untended = True
            self._changed.notify_all()

    def flush(self, timeout: float | None, *, patient: bool = True) -> bool:
        """Send now; say whether all was answered for within `timeout` seconds.

        Unless `patient` it returns at the first failure, which a spool outlives.
        """
        self.wake()
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            before = self.failures
            self._changed.wait_for(
                lambda: self._is_empty() or not (patient or self.failures == before), timeout
            )
            return self._is_empty()

    def stop(self, timeout: float) -> bool:
        """End the thread; say whether it ended within `timeout` seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _is_empty(self) -> bool:
        spool = self._spool()
        if self._hurry or not self._settle():
            return False
        return spool is None or spool.pending == len(self._undeleted.get(spool.path, ()))

    def _run(self) -> None:
        while True:
            wait: float | None = None
            try:
                self._pass()
                self._backoff, self.error = 0, None
            except Exception as error:  # noqa: BLE001  # the thread must outlive any answer
                wait = self._failed(error)
            with self._changed:
                self._changed.notify_all()
            if wait is None:
                self._wait(_LOOK_SECONDS, lambda: self._woken)
                # What follows at once goes along.
                wait = _LINGER
            self._wait(wait)
            if self._stopping:
                return

    def _wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Wait, unless there is haste, and tend the spool meanwhile."""
        ends = time.monotonic() + seconds
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or self._hurry or self._is_untended or until(),
                    max(0.0, ends - time.monotonic()),
                )
                is_untended, self._is_untended = self._is_untended, False
            if not is_untended:
                return
            spool = self._spool()
            if spool is not None:
                with self._disk():
                    spool.tend()

    def _failed(self, error: Exception) -> float:
        """Note why a pass failed; return for how long to wait."""
        told = f"{type(error).__name__}: {error}"
        if self.error is None:
            log.warning("What is recorded stays in the spool for now: %s", told)
        with self._changed:
            self.error = told
            # A service that is there and busy is worth waiting for.
            self.failures += not isinstance(error, KeptBack)
            self._hurry = False
        after = error.retry_after if isinstance(error, Problem) else None
        if after is not None:
            return min(after, _LONGEST_RETRY_AFTER)
        self._backoff = min(self._backoff + 1, 10)
        jitter = random.uniform(0.5, 1.0)  # noqa: S311  # no secret
        return jitter * min(_FIRST_BACKOFF * 2.0**self._backoff, _LONGEST_BACKOFF)

    def _pass(self) -> None:
        """Send all that can be sent. Raises what stopped it."""
        with self._changed:
            self._woken = False
            hurry = self._hurry
        self._settle()
        spool = self._spool()
        if spool is not None:
            with self._disk():
                spool.tend()
            look = hurry or time.monotonic() - self._looked_at > _LOOK_SECONDS
            if spool.pending or look:
                self._send(spool, look=look)
        with self._changed:
            self._hurry = False

    def _send(self, spool: Spool, *, look: bool) -> None:
        """Send what this process appended, then what the dead left."""
        place = spool.path.parent
        if not spool.pending and not any(each != spool.path for each in place.glob("*.sqlite")):
            return
        if self._courier is None:
            self._courier = self._connect()
        if not self._tenant:
            self._tenant = self._courier.tenant()
        self._drain(spool, self._courier)
        if look:
            self._looked_at = time.monotonic()
            for other in spools.left(place, self._owner, self._tenant, spool.most):
                self._drain(other, self._courier)

    def _drain(self, spool: Spool, courier: Courier) -> None:
        """Send what one file holds. Raises the error that stopped it, or kept some of it back."""
        if spool.meta.get("tenant") != self._tenant:
            with self._disk():
                spool.note("tenant", self._tenant)
        gone = self._undeleted.setdefault(spool.path, set())
        after, kept_back = 0, 0
        while not self._stopping:
            found = spool.ready(after, _AT_ONCE, _BYTES_AT_ONCE)
            if not found:
                break
            after = found[-1].seq
            items = [each for each in found if each.run not in gone]
            if not items:
                continue
            out = courier.deliver(items, is_foreign=spool.is_foreign)
            self._note(spool, out, gone)
            if out.error is not None:
                raise out.error
            kept_back += len(items) - len(out.done) - len(out.dead)
        if gone:
            self._forget(spool, gone)
        else:
            del self._undeleted[spool.path]
        if kept_back:
            raise KeptBack(f"The service took {kept_back} for later: it was busy with them.")

    def _note(self, spool: Spool, out: Outcome, gone: set[str]) -> None:
        """Delete what arrived, and bury what never will; a full disk leaves it for later."""
        gone.update(out.done)
        with self._disk():
            spool.remove(out.done)
            gone.difference_update(out.done)
        buried = 0
        for run, dead in out.dead.items():
            log.error("The service refused what was recorded, for good: %s", dead.detail)
            with self._disk():
                spool.bury(run, dead.status, dead.detail, dead.body)
                buried += 1
        with self._changed:
            self.sent += len(out.done)
            self.dead += buried
            self._changed.notify_all()

    def _forget(self, spool: Spool, gone: set[str]) -> None:
        try:
            spool.remove(gone)
        except sqlite3.Error as error:
            log.warning("The disk is full (%s): the spool's file is begun anew.", error)
            spool.start_over(gone)
        del self._undeleted[spool.path]

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Note that the disk refuses; what was tried is tried again at the next pass."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self.disk_error = f"{type(error).__name__}: {error}"

    def stats(self) -> dict[str, Any]:
        """Return counts since this process began, and what is wrong."""
        return {
            "sent": self.sent,
            "dead": self.dead,
            "failures": self.failures,
            "error": self.error,
            "disk_error": self.disk_error,
        }


class KeptBack(Exception):
    """Single records were refused for now."""
