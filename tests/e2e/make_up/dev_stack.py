"""`make up` as a test starts, watches and stops it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dev import stack as dev_stack
from dev.stack import ROOT
from tests.e2e.harness.stack import ONE_OF_EACH, PLAIN, START_SECONDS
from tests.support.faults import LONG_ENOUGH, until

UP = (sys.executable, "-m", "dev.up")


def processes() -> dict[int, tuple[int, str]]:
    """Return each living process's parent and start time, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(folder.name)] = (int(parent), rest[17])
    return found


class Stack(dev_stack.Stack):
    """One `make up`, in a folder of its own."""

    def __init__(self, data_dir: Path, port: int, said: Path) -> None:
        super().__init__({**PLAIN, "PORT": str(port), "DATA_DIR": str(data_dir)}, said)
        self.data_dir = data_dir
        self.port = port

    def launch(
        self, *command: str, env: Mapping[str, str] | None = None, **options: object
    ) -> None:
        """Start it, as `command` or otherwise directly, without waiting for anything."""
        told = {**({} if command else ONE_OF_EACH), **self._environ, **(env or {})}
        with self.log.open("ab") as said:
            self.process = subprocess.Popen(
                command or UP,
                cwd=ROOT,
                env=told,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,  # type: ignore[call-overload]
            )

    def up(self, *command: str, env: Mapping[str, str] | None = None, **options: object) -> None:
        """Start it, and wait until it says that all is up."""
        self.launch(*command, env=env, **options)
        until(
            lambda: self.env_file.exists() or self.process.poll() is not None,
            START_SECONDS,
            why=self,
        )
        assert self.process.poll() is None, self

    @property
    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def __repr__(self) -> str:
        return self.said

    def get(self, path: str) -> dict[str, object]:
        """GET a path with the root admin key, and return the JSON of a good answer."""
        request = urllib.request.Request(
            self.values()["BASE_URL"] + path,
            headers={"Authorization": f"Bearer {self.values()['SERVICE_API_KEY']}"},
        )
        with urllib.request.urlopen(request, timeout=LONG_ENOUGH) as answer:
            found: dict[str, object] = json.load(answer)
            return found

    def all_of_it(self) -> dict[int, str]:
        """Return every process of the stack with its start time, by process id."""
        table = processes()
        mine = {self.process.pid}
        grown = True
        while grown:
            more = {pid for pid, (parent, _) in table.items() if parent in mine} - mine
            mine |= more
            grown = bool(more)
        return {pid: table[pid][1] for pid in mine if pid in table}

    def name_of(self, pid: int) -> str:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def still_there(those: Mapping[int, str]) -> list[int]:
    table = processes()
    return [pid for pid, born in those.items() if pid in table and table[pid][1] == born]
