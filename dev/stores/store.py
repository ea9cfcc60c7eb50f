"""Base of the two embedded stores: a folder, a port, a server that ends with its starter.

A store keeps what it must remember (passwords, port) in its own folder, so a second start finds
everything as it was. Its server listens on 127.0.0.1, alone unless told otherwise, on a port that
was free once.
"""

import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from ipaddress import IPv4Interface
from pathlib import Path
from typing import IO, ClassVar, Self

from dev import env_file, processes
from dev.refusal import CannotStart

_START_SECONDS = 60.0
_OLD_SERVER_SECONDS = 10.0
_OLD_PORT_SECONDS = 1.0
_POLL_SECONDS = 0.02
_PORT_TAKEN = "Address already in use"


class Store(ABC):
    """A server of one's own in a folder: `with` starts and stops it."""

    name: ClassVar[str]
    # What it is sent in order to end.
    _stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    # Words by which the server says that an earlier one has not quite gone yet.
    _still_there: ClassVar[tuple[str, ...]] = ()

    def __init__(self, folder: Path, *, also_on: IPv4Interface | None = None) -> None:
        """`also_on` is another address of this machine to listen on, for its network's hosts."""
        self._also_on = also_on
        self.folder = folder.resolve()
        self.process: subprocess.Popen[bytes] | None = None
        self._kept: dict[str, str] = {}

    @property
    def log(self) -> Path:
        """Where the server's own words go."""
        return self.folder / "server.log"

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, once started."""
        return int(self._kept["PORT"])

    @property
    def _addresses(self) -> list[str]:
        """Where the server listens."""
        return ["127.0.0.1", *([str(self._also_on.ip)] if self._also_on else [])]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Prepare the folder, start the server, and wait until it answers.

        Raises `CannotStart` with the server's last words when it does not.
        """
        self._prepare()
        began = time.monotonic()
        while True:
            self.log.write_bytes(b"")
            self.spawn()
            if self._comes_up():
                return
            waited = time.monotonic() - began
            if not self._may_try_again(waited):
                raise CannotStart(f"{self.name} does not start: {self._last_words()} ({self.log})")
            time.sleep(_POLL_SECONDS)

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start the server's process without waiting for it; also how a dead one is replaced."""
        with self.log.open("ab") as log:
            self.log.chmod(0o600)
            self.process = self._spawn(log)
        return self.process

    def stop(self) -> None:
        """Stop the server cleanly, and wait until it has gone."""
        if self.process is not None:
            processes.stop(self.process, self._stop_signal)
            self.process = None

    @abstractmethod
    def _prepare(self) -> None:
        """Make the folder what the server needs, whatever was left of an earlier run."""

    @abstractmethod
    def _spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start the server's process, its output going to `log`."""

    @abstractmethod
    def _answers(self) -> bool:
        """Say whether the server takes the store's own password."""

    def _keep_port(self) -> None:
        self._kept = env_file.keep(self.folder / "secrets", PORT=lambda: str(free_port()))

    def _comes_up(self) -> bool:
        """Wait for the first answer; false when the server ended instead."""
        assert self.process is not None  # noqa: S101  # called after spawn
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            try:
                self.process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if self._answers():
                    return True
            else:
                return False
        self.stop()
        return False

    def _may_try_again(self, waited: float) -> bool:
        words = self.log.read_text("utf-8", "replace")
        if _PORT_TAKEN in words:
            if waited > _OLD_PORT_SECONDS:
                self._kept["PORT"] = str(free_port())
                env_file.write(self.folder / "secrets", self._kept)
        elif not any(text in words for text in self._still_there):
            return False
        return waited < _OLD_SERVER_SECONDS

    def _last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").split("\n")
        lines = [line.strip() for line in lines if line.strip()]
        telling = [line for line in lines if "FATAL" in line or "PANIC" in line]
        return " ".join(telling[-1:] or lines[-3:]) or "it wrote nothing"


def free_port() -> int:
    """Return a free port of 127.0.0.1, below those that the kernel gives to connections.

    One of those could be taken while its server is away for a moment, and be lost for good.
    """
    while True:
        port = random.randrange(30_000, 32_768)  # noqa: S311  # no secret
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
