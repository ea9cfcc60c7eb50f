"""Servers that tests share: where one has died, the test that failed says why, and the next has a
new one at the same address."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dev import processes

_LAST_LINES = 40


@dataclass(eq=False)
class Shared:
    """One server: its process as it is now, where its words go, and how it is started anew."""

    name: str
    process: Callable[[], "subprocess.Popen[bytes] | None"]
    log: Path
    start: Callable[[], object]
    answers: Callable[[], bool] = lambda: True
    gone: str = ""
    told: bool = False

    def look(self, *, closely: bool = False) -> str:
        """Return why it is not there, with its last words; "" while it is.

        Looked at `closely` it must also answer; if it does not, it is killed.
        """
        process = self.process()
        if self.gone or process is None:
            return self.gone
        if process.poll() is not None:
            processes.stop(process)
            self.gone = f"{self.name} has ended with exit code {process.returncode}"
        elif closely and not self.answers():
            self.gone = f"{self.name} does not answer"
            processes.stop(process, signal.SIGKILL)
        if self.gone:
            words = self.log.read_text("utf-8", "replace").splitlines()[-_LAST_LINES:]
            self.gone = "\n".join([f"{self.gone}; its last words, of {self.log}:", *words])
        return self.gone


_ALL: list[Shared] = []


@contextmanager
def shared(server: Shared) -> Iterator[None]:
    """Watch a server for the length of the `with`."""
    _ALL.append(server)
    try:
        yield
    finally:
        _ALL.remove(server)


def deaths(*, closely: bool = False) -> list[str]:
    """Return why each shared server is gone that is; of each death once."""
    found = [each for each in _ALL if each.look(closely=closely) and not each.told]
    for each in found:
        each.told = True
    return [each.gone for each in found]


def start_anew() -> None:
    """Start the servers that are gone."""
    for each in _ALL:
        if each.look():
            each.gone, each.told = "", False
            each.start()
