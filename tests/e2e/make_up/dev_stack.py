"""`make up` as a test starts, watches and stops it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dev import env_file
from tests.e2e.harness.stack import ONE_OF_EACH, PLAIN, START_SECONDS
from tests.support.faults import LONG_ENOUGH, until

ROOT = Path(__file__).resolve().parents[3]
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


class Stack:
    """One `make up`, in a folder of its own."""

    def __init__(self, data_dir: Path, port: int, said: Path) -> None:
        self.data_dir = data_dir
        self.port = port
        self.said_file = said
        self.process: subprocess.Popen[bytes]

    def start(self, *command: str, env: Mapping[str, str] | None = None, **options: object) -> None:
        told = {**PLAIN, "PORT": str(self.port), "DATA_DIR": str(self.data_dir), **(env or {})}
        if not command:
            told = {**ONE_OF_EACH, **told}
        with self.said_file.open("ab") as said:
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
        self.start(*command, env=env, **options)
        until(
            lambda: self.env_file.exists() or self.process.poll() is not None,
            START_SECONDS,
            why=self,
        )
        assert self.process.poll() is None, self

    @property
    def client_env(self) -> Path:
        """The file with what callers need, while the stack is up."""
        return self.data_dir / "client.env"

    @property
    def env_file(self) -> Path:
        return self.data_dir / "env"

    @property
    def env(self) -> dict[str, str]:
        return env_file.read(self.env_file)

    @property
    def said(self) -> str:
        return self.said_file.read_text("utf-8", "replace")

    def __repr__(self) -> str:
        return self.said

    def get(self, path: str) -> dict[str, object]:
        """GET a path with the root admin key, and return the JSON of a good answer."""
        request = urllib.request.Request(
            self.env["BASE_URL"] + path,
            headers={"Authorization": f"Bearer {self.env['SERVICE_API_KEY']}"},
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

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(START_SECONDS)

    def name_of(self, pid: int) -> str:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def still_there(those: Mapping[int, str]) -> list[int]:
    table = processes()
    return [pid for pid, born in those.items() if pid in table and table[pid][1] == born]


def gone(those: Mapping[int, str]) -> bool:
    return not still_there(those)
