"""A whole stack as a child process: what `make demo` shows and the end-to-end tests stand on."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dev import env_file
from dev.refusal import CannotStart

ROOT = Path(__file__).resolve().parents[1]

_POLL_SECONDS = 0.05


class Stack:
    """One `make up` in a process of its own; what it says goes into the file `log`.

    It ends with its starter, also when that is killed. Start it from the main thread:
    the kernel counts the end of the starting thread as the starter's.
    """

    def __init__(self, environ: Mapping[str, str], log: Path) -> None:
        """`environ` is its whole environment, with DATA_DIR, PORT and settings for `make up`."""
        self.log = log
        self.process: subprocess.Popen[bytes]
        self._environ = environ
        self.env_file = Path(environ["DATA_DIR"]) / "env"
        self.client_env = Path(environ["DATA_DIR"]) / "client.env"

    def start(self) -> None:
        """Start the process, without waiting for anything."""
        # A killed run leaves its own behind.
        self.env_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dev.up", "--tied"],
                cwd=ROOT,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches only the starter, which then stops this one in its own time.
                start_new_session=True,
            )

    def is_up(self) -> bool:
        """Say whether all of it has come up since the start.

        Raises `CannotStart` with its last line once it has ended instead.
        """
        self.require_alive()
        return self.env_file.exists()

    def require_alive(self) -> None:
        """Raise `CannotStart`, with its last line, if the process has ended."""
        if self.process.poll() is not None:
            raise CannotStart(self._last_line())

    def values(self) -> dict[str, str]:
        """Return what the stack tells callers and operators: BASE_URL, SERVICE_API_KEY and more."""
        return env_file.read(self.env_file)

    def now(self, name: str) -> None:
        """Ring an entry of the timetable, as `make now` does."""
        subprocess.run(  # noqa: S603  # our own scheduler
            [sys.executable, "-m", "scheduler", "now", name],
            cwd=ROOT,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def stop(self, forced: Callable[[], bool] = lambda: False) -> int:
        """Stop it cleanly, or at once when `forced()` says so; return its exit code."""
        self.process.terminate()
        while self.process.poll() is None:
            if forced():
                self.process.kill()
            time.sleep(_POLL_SECONDS)
        return int(self.process.returncode)

    def _last_line(self) -> str:
        with self.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 4096))
            lines = log.read().decode("utf-8", "replace").split("\n")
        lines = [line.strip() for line in lines if line.strip()]
        return lines[-1].removeprefix("make up: ") if lines else "the service ended without a word"
