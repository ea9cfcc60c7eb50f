"""Keeps processes running, as a PaaS would, and passes on what they say.

One that dies is started again, after a pause that doubles from 0.2 s to 5 s and is forgotten after
10 s of life. Output comes in whole lines, each behind its process's name.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

from dev import processes

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
PAUSE_RESET_AFTER = 10.0

_POLL_SECONDS = 0.1
_FORCE_AFTER_SECONDS = 1.0
# A line without an end is passed on in pieces of this many bytes.
_LONGEST_LINE = 64 * 1024
_COLOURS = (36, 33, 35, 32, 34, 31)

# Starts a process; its output is passed on if it is a pipe.
Spawn = Callable[[], "subprocess.Popen[bytes]"]


class StopRequest:
    """True once a stop was requested: Ctrl-C, SIGTERM, or the closing of the terminal.

    Once is enough. Again, a second or more later, means: at once (`forced`). Sooner, it is the same
    request heard twice: `make` passes on a signal that its whole group has received already.
    """

    def __init__(self) -> None:
        self.forced = False
        self._asked_at: float | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._hear)

    def __bool__(self) -> bool:
        return self._asked_at is not None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at >= _FORCE_AFTER_SECONDS:
            self.forced = True


class Output:
    """The one place where lines are written; coloured on a terminal only."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._colours: dict[str, int] = {}
        self._lock = threading.Lock()

    def say(self, name: str, text: str) -> None:
        """Write one line behind a name."""
        label = f"{name:<9} |"
        with self._lock:
            if self._target.isatty():
                next_colour = _COLOURS[len(self._colours) % len(_COLOURS)]
                label = f"\033[{self._colours.setdefault(name, next_colour)}m{label}\033[0m"
            try:
                self._target.write(f"{label} {text}\n")
                self._target.flush()
            except OSError:
                # The reader has gone, as with `make up | head`; the service goes on without one.
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), self._target.fileno())


@dataclass(eq=False)
class _Kept:
    """One process, and what is known of its life."""

    name: str
    spawn: Spawn
    process: "subprocess.Popen[bytes]"
    for_ever: bool = True
    started_at: float = field(default_factory=time.monotonic)
    pause: float = 0.0
    again_at: float | None = None
    reader: threading.Thread | None = None


class Runner:
    """Runs processes, and passes on what they say, until a stop is requested."""

    def __init__(self, output: Output, stop: StopRequest) -> None:
        self._output = output
        self._stop = stop
        self._all: list[_Kept] = []

    def watch(
        self, name: str, spawn: Spawn, process: "subprocess.Popen[bytes] | None" = None
    ) -> None:
        """Keep a process running from now on; `process` is it, if it has been started already."""
        self._add(_Kept(name, spawn, process or spawn()))

    def once(self, name: str, spawn: Spawn) -> int:
        """Run a process to its end, or to a request to stop, and return its exit code."""
        kept = _Kept(name, spawn, spawn(), for_ever=False)
        self._add(kept)
        while kept.process.poll() is None and not self._stop:
            self._look()
        self.stop(name)
        return kept.process.returncode

    def run(self, on_each: Callable[[], None]) -> None:
        """Keep everything running until a request to stop; call `on_each` ten times a second."""
        while not self._stop:
            self._look()
            on_each()

    def stop(self, *names: str, grace: float = processes.GRACE_SECONDS) -> None:
        """Stop those processes together, wait for their end, and watch them no longer.

        After `grace` seconds, or at once if a stop is forced, they are killed.
        """
        leaving = [kept for kept in self._all if kept.name in names]
        for kept in leaving:
            kept.for_ever, kept.again_at = False, None
            kept.process.terminate()
        deadline = time.monotonic() + grace
        while living := [kept for kept in leaving if kept.process.poll() is None]:
            self._look()
            if self._stop.forced or time.monotonic() > deadline:
                for kept in living:
                    kept.process.kill()
        for kept in leaving:
            self._clean_up(kept)
            self._all.remove(kept)

    def _add(self, kept: _Kept) -> None:
        self._all.append(kept)
        self._pass_on_output(kept)

    def _look(self) -> None:
        """Wait for a moment, then restart the processes that died."""
        time.sleep(_POLL_SECONDS)
        for kept in self._all:
            if kept.again_at is None:
                if kept.for_ever and kept.process.poll() is not None:
                    self._schedule_restart(kept)
            elif time.monotonic() >= kept.again_at:
                kept.again_at = None
                kept.process = kept.spawn()
                kept.started_at = time.monotonic()
                self._pass_on_output(kept)

    def _schedule_restart(self, kept: _Kept) -> None:
        """Say that a process has died, and set when it starts again."""
        self._clean_up(kept)
        now = time.monotonic()
        if now - kept.started_at >= PAUSE_RESET_AFTER:
            kept.pause = 0.0
        kept.pause = min(max(kept.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        kept.again_at = now + kept.pause
        code = kept.process.returncode
        text = f"ended with exit code {code}"
        if code < 0:
            text = f"was killed by {signal.Signals(-code).name}"
        self._output.say(kept.name, f"{text}; starting again in {kept.pause:g} s")

    def _pass_on_output(self, kept: _Kept) -> None:
        """Pass on each line of a process from a thread, until its pipe ends."""

        def read(pipe: IO[bytes]) -> None:
            with pipe:
                while line := pipe.readline(_LONGEST_LINE):
                    self._output.say(kept.name, line.decode("utf-8", "replace").rstrip("\r\n"))

        if kept.process.stdout is not None:
            kept.reader = threading.Thread(target=read, args=(kept.process.stdout,), daemon=True)
            kept.reader.start()

    def _clean_up(self, kept: _Kept) -> None:
        """Kill what a process has left behind, and have the rest of its output passed on."""
        processes.kill_rest(kept.process)
        if kept.reader is not None:
            kept.reader.join(_FORCE_AFTER_SECONDS)
