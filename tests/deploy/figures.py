"""What a deployment takes of its host: connections at their peak, memory, time to start."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.deploy.site import Site

_EVERY_SECONDS = 2.0
_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = %s AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@dataclass
class Figures:
    """The figures of one deployment; memory in MiB, times in seconds."""

    name: str
    start: float = 0.0
    stop: float = 0.0
    findings: int = 0
    connections: int = 0
    memory: dict[str, float] = field(default_factory=dict)

    def row(self) -> str:
        """Return them as a row of a Markdown table."""
        parts = [f"{self.memory.get(line, 0):.0f}" for line in ("web", "worker", "scheduler")]
        return (
            f"| {self.name} | {self.start:.1f} s | {self.connections} | {' + '.join(parts)} MiB"
            f" | {self.findings} | {self.stop:.1f} s |"
        )


HEAD = (
    "| Deployment | Until `/readyz` is 200 | Connections of PostgreSQL | Memory (web + worker +"
    " scheduler) | Findings delivered | From SIGTERM to the end |\n|---|---|---|---|---|---|"
)


@contextmanager
def watched(site: Site, figures: Figures) -> Iterator[None]:
    """Note the peaks of connections and memory for the length of the `with`."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(site, figures, over), name="figures")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(site: Site, figures: Figures, over: threading.Event) -> None:
    admin_url = site.servers.admin_url("postgres")
    with closing(psycopg.connect(admin_url, autocommit=True)) as connection:
        while not over.wait(_EVERY_SECONDS):
            (row,) = connection.execute(_CONNECTIONS, (site.database,)).fetchall()
            figures.connections = max(figures.connections, row[0])
            for line, mebibytes in _memory(site).items():
                figures.memory[line] = max(figures.memory.get(line, 0.0), mebibytes)


def _memory(site: Site) -> dict[str, float]:
    """Return the memory of all processes of each line of the Procfile, shared pages by share."""
    found: dict[str, float] = {}
    for name, pids in site.processes().items():
        line = name.partition("-")[0]
        found[line] = found.get(line, 0.0) + sum(map(_pss, pids))
    return found


def _pss(pid: int) -> float:
    """Return a process's proportional set size in MiB; 0 once it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    lines = (line.split() for line in rollup.splitlines())
    return next((int(words[1]) / 1024 for words in lines if words[0] == "Pss:"), 0.0)
