"""The counters of the whole stack: what all its processes have counted, added up in PostgreSQL.

Each process counts in memory (`app/lib/metric_registry.py`), and every five seconds adds what is
new to the table `counters`, in one statement; a process that has nothing new writes nothing. So a
scrape of any web process shows the same figures, of every process on every host, each counted once.
A process that is killed takes at most its last five seconds with it: what it had added stays, and
no figure ever goes back, whoever answers the scrape.

Why here and not in Redis, beside the signs of life: Redis may be emptied at any moment, and then
every figure would begin anew or, kept by process, vanish with the dead. Nor are figures kept for
each process and summed: somebody would have to decide when a silent one is dead. The price is one
statement a process and five seconds, and only while something happens.

The writer is a thread of its own. The one that writes outcomes writes anyway, but no outcome should
ever wait for a figure. Nothing here is the ledger: where the connection breaks between a COMMIT and
its answer, these few seconds are added twice. What must be exact is in the books of each webhook.
"""

import threading
from multiprocessing.util import Finalize

import structlog
from sqlalchemy.orm import Session

from app.database import Database, cursor
from app.lib import canonical_json
from app.lib.metric_registry import Figure, Tally
from app.models import NO_TENANT

_log = structlog.get_logger(__name__)

EVERY_SECONDS = 5.0
_LAST_WRITE_SECONDS = 1.0

_ADD = """
INSERT INTO counters AS c (tenant_id, name, labels, value)
SELECT %s::uuid, new.name, new.labels, new.value
  FROM unnest(%s::text[], %s::text[], %s::float8[]) AS new (name, labels, value)
ON CONFLICT (tenant_id, name, labels) DO UPDATE SET value = c.value + excluded.value
"""


def add(session: Session, growth: dict[Figure, float]) -> None:
    """Add to the stack's figures, in a transaction of `NO_TENANT`."""
    # In one order everywhere: who adds at the same time waits and does not deadlock.
    rows = sorted((name, _text(labels), float(value)) for (name, labels), value in growth.items())
    columns = [list(column) for column in zip(*rows, strict=True)]
    cursor(session).execute(_ADD, (NO_TENANT, *columns))


def read(session: Session) -> list[tuple[str, str, float]]:
    """Return every figure as (name, labels' values as a JSON array, value), of `NO_TENANT`."""
    found = cursor(session).execute(
        "SELECT name, labels, value FROM counters ORDER BY name, labels"
    )
    return [(name, labels, value) for name, labels, value in found.fetchall()]


class CounterWriter:
    """Writes down what one process has counted; one a process."""

    def __init__(self, database: Database, tally: Tally) -> None:
        self._database = database
        self._tally = tally
        self._written: dict[Figure, float] = {}
        self._writing = threading.Lock()
        self._stopping = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None
        self._at_exit: Finalize | None = None

    def begin(self) -> None:
        """Write every five seconds from now on; calling it again costs next to nothing.

        For a process that forks afterwards takes no thread along, the web says so each time.
        """
        if self._thread is None or not self._thread.is_alive():
            with self._writing:
                if self._thread is None or not self._thread.is_alive():
                    self._start()

    def write(self) -> None:
        """Add what was counted since the last time; what cannot be written waits for the next."""
        with self._writing:
            now = self._tally.figures()
            growth = {
                figure: value - self._written.get(figure, 0)
                for figure, value in now.items()
                if value != self._written.get(figure, 0)
            }
            if growth and self._add(growth):
                self._written = now

    def close(self) -> None:
        """Write what is left, for at most a second, and end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_LAST_WRITE_SECONDS)
        if self._at_exit is not None:
            self._at_exit.cancel()

    def _start(self) -> None:
        # A web server that is told to stop tells the application nothing, and its processes are
        # those of multiprocessing, which do not run what was registered with atexit.
        self._at_exit = Finalize(None, self.close, exitpriority=1)
        self._thread = threading.Thread(target=self._run, name="counters", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            self.write()
        self.write()

    def _add(self, growth: dict[Figure, float]) -> bool:
        try:
            with self._database.transaction(NO_TENANT) as session:
                add(session, growth)
        except Exception as error:  # noqa: BLE001  # no figure is worth a request or this thread
            if not self._failing:
                _log.warning("counters_not_written", error=type(error).__name__)
            self._failing = True
            return False
        self._failing = False
        return True


def _text(labels: tuple[str, ...]) -> str:
    return canonical_json.dumps(list(labels)).decode()
