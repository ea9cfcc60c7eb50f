"""Keeps processes running, as a PaaS would.

Each process has a subreaper of its own, so none of it outlives this one. One that dies is started
again, after a pause that doubles from 0.2 s to 5 s and is forgotten after 10 s of life.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dev.output import Lines, Output
from dev.stop_request import StopRequest
from dev.stores import subreaper

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
PAUSE_RESET_AFTER = 10.0

_TURN_SECONDS = 0.1
_PIECE = 64 * 1024

# Starts a process under a subreaper; its output is passed on if it is a pipe.
Spawn = Callable[[], "subprocess.Popen[bytes]"]


@dataclass(eq=False)
class _Kept:
    """One process, and what is known of its life."""

    name: str
    spawn: Spawn
    process: "subprocess.Popen[bytes]"
    lines: Lines
    for_ever: bool = True
    started_at: float = field(default_factory=time.monotonic)
    pause: float = 0.0
    again_at: float | None = None


class Runner:
    """Runs processes, and passes on what they say, until a stop is requested."""

    def __init__(self, output: Output, stop: StopRequest) -> None:
        self._output = output
        self._stop = stop
        self._all: list[_Kept] = []
        self._pipes = selectors.DefaultSelector()
        # A subreaper that is itself killed leaves its descendants to this process.
        subreaper.adopt_orphans()

    def watch(
        self, name: str, spawn: Spawn, process: "subprocess.Popen[bytes] | None" = None
    ) -> None:
        """Keep a process running from now on; `process` is it, if it has been started already."""
        self._add(name, spawn, process or spawn(), for_ever=True)

    def once(self, name: str, spawn: Spawn) -> int:
        """Run a process to its end, or to a request to stop, and return its exit code."""
        kept = self._add(name, spawn, spawn(), for_ever=False)
        while kept.process.poll() is None and not self._stop:
            self._turn()
        self.stop(name)
        return kept.process.returncode

    def run(self, every_turn: Callable[[], None]) -> None:
        """Keep everything running until a request to stop; call `every_turn` ten times a second."""
        while not self._stop:
            self._turn()
            every_turn()

    def stop(self, *names: str) -> None:
        """Stop those processes together, wait for their end, and watch them no longer."""
        leaving = [kept for kept in self._all if kept.name in names]
        for kept in leaving:
            kept.for_ever, kept.again_at = False, None
            kept.process.terminate()
        while any(kept.process.poll() is None for kept in leaving):
            self._turn()
            if self._stop.forced:
                for kept in leaving:
                    kept.process.send_signal(signal.SIGHUP)
        for kept in leaving:
            self._clean_up(kept)
            self._all.remove(kept)

    def _add(
        self, name: str, spawn: Spawn, process: "subprocess.Popen[bytes]", *, for_ever: bool
    ) -> _Kept:
        kept = _Kept(name, spawn, process, Lines(name, self._output), for_ever)
        self._all.append(kept)
        self._watch_output(kept)
        return kept

    def _turn(self) -> None:
        """Pass on output for a moment, then restart the processes that died."""
        for key, _ in self._pipes.select(_TURN_SECONDS):
            self._read_output(key.data)
        for kept in self._all:
            if kept.again_at is not None:
                self._start_again(kept, kept.again_at)
            elif kept.for_ever and kept.process.poll() is not None:
                self._schedule_restart(kept)

    def _schedule_restart(self, kept: _Kept) -> None:
        """Say that a process has died, and set when it starts again."""
        self._clean_up(kept)
        now = time.monotonic()
        if now - kept.started_at >= PAUSE_RESET_AFTER:
            kept.pause = 0.0
        kept.pause = min(max(kept.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        kept.again_at = now + kept.pause
        text = _exit_text(kept.process.returncode)
        self._output.say(kept.name, f"{text}; starting again in {kept.pause:g} s")

    def _start_again(self, kept: _Kept, at: float) -> None:
        if time.monotonic() >= at:
            kept.again_at = None
            kept.process = kept.spawn()
            kept.started_at = time.monotonic()
            self._watch_output(kept)

    def _watch_output(self, kept: _Kept) -> None:
        pipe = kept.process.stdout
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
            self._pipes.register(pipe, selectors.EVENT_READ, kept)

    def _read_output(self, kept: _Kept) -> None:
        """Take in a piece of what a process says; nothing is left of it at the end."""
        pipe = kept.process.stdout
        assert pipe is not None  # noqa: S101  # it was registered
        piece = os.read(pipe.fileno(), _PIECE)
        kept.lines.take(piece)
        if not piece:
            self._pipes.unregister(pipe)
            pipe.close()

    def _clean_up(self, kept: _Kept) -> None:
        """Remove what a killed subreaper may have left, and read the rest of its output."""
        subreaper.kill_children(but=[other.process.pid for other in self._all])
        pipe = kept.process.stdout
        while pipe is not None and not pipe.closed:
            self._read_output(kept)


def _exit_text(code: int) -> str:
    """Put an exit code into words: 128 + N is a subreaper's code for signal N."""
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"was killed by {signal.Signals(number).name}"
    return f"ended with exit code {code}"
