"""The spool: what was appended and not yet answered for, in SQLite files of one private folder.

A process writes to one file, which is its own while it lives: a lock that dies with it says so.
Files that the dead left are taken over. So no process waits for another, and each entry has one
sender.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from record_service.recorder.places import Lock, Owner, held_bytes

log = logging.getLogger("record_service")

MOST_BYTES = 512 * 1024 * 1024
"""How much a folder may hold, unless told otherwise."""

# What an entry costs beside its body.
_OVERHEAD = 200
_PAGE = 4096
_CHECKPOINT_BYTES = 4 * 1024 * 1024
# Checkpoints wait for the disk, and are the sender's; a writer makes one only if that thread hangs.
_WRITERS_CHECKPOINT_PAGES = 32 * _CHECKPOINT_BYTES // _PAGE
TEND_EVERY = 256
"""Appends after which `tend` should run."""

_VACUUM_PAGES = 512
# Runs deleted in one transaction, which an append may have to wait for.
_AT_ONCE = 25
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, what TEXT NOT NULL,
    span TEXT NOT NULL, ready INTEGER NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL,
    body NOT NULL);
CREATE INDEX IF NOT EXISTS of_run ON entries (run);
CREATE INDEX IF NOT EXISTS ready ON entries (seq) WHERE ready = 1;
CREATE TABLE IF NOT EXISTS dead (
    run TEXT NOT NULL, at INTEGER NOT NULL, status INTEGER NOT NULL, detail TEXT NOT NULL,
    body NOT NULL);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_COLUMNS = "run, what, span, ready, at, size, body"
_INSERT = f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
# The oldest go, so that dead letters never fill the spool.
_BURY_LESS = """
DELETE FROM dead WHERE rowid IN (
    SELECT rowid FROM (SELECT rowid, sum(length(body)) OVER (ORDER BY rowid DESC) AS size FROM dead)
     WHERE size > ?)
"""
# Of a process that died: what it had begun is sent as it stands.
_LOST = f"""
INSERT INTO entries ({_COLUMNS})
SELECT run, 'lost', '', 1, max(at), 0, '' FROM entries GROUP BY run HAVING max(ready) = 0
"""


class Row(NamedTuple):
    """An entry to append; `ready` says that with it its run can be sent."""

    run: str
    what: str
    body: str | bytes
    span: str = ""
    ready: bool = False


class Item(NamedTuple):
    """A run that can be sent: its entries (what, span, body) in the order of their making."""

    seq: int
    run: str
    what: str
    at: int
    is_old: bool
    entries: Sequence[tuple[str, str, Any]]


class Full(OSError):
    """The spool has reached its size."""


class Spool:
    """One file of a spool, held by this process; safe for its threads.

    `is_foreign` says that its entries were, or may have been, sent with another key before.
    """

    def __init__(self, path: Path, lock: Lock, owner: Owner, most: int) -> None:
        self.path = path
        self.most = most
        self.owner = owner
        self.is_foreign = False
        self.corrupt = 0
        self.others = 0
        self.is_refused = False
        # Two locks: a checkpoint, which waits for the disk, must not keep an append waiting. Who
        # needs both takes `reading` first.
        self.lock = threading.RLock()
        self.reading = threading.RLock()
        self._lock_file = lock
        try:
            self._open()
        except BaseException:
            lock.release()
            raise

    def _open(self) -> None:
        try:
            self._connect()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            # What power loss or a failing disk leaves is kept for people, and a new file begun.
            self.corrupt += 1
            self.path.rename(f"{self.path}.corrupt-{time.time_ns()}")
            self._unlink()
            self._connect()

    def _connect(self) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
        self._db = self._connected()
        try:
            if not self._all("SELECT name FROM sqlite_master LIMIT 1"):
                # Nothing is there to lose yet, and nobody should wait for the disk.
                self._db.execute("PRAGMA synchronous=OFF")
                self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")
                self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(_SCHEMA)
            for pragma in (
                "synchronous=NORMAL",
                f"wal_autocheckpoint={_WRITERS_CHECKPOINT_PAGES}",
                f"journal_size_limit={4 * _CHECKPOINT_BYTES}",
                f"max_page_count={max(64, self.most * 5 // 4 // _PAGE)}",
            ):
                self._db.execute(f"PRAGMA {pragma}")
            meta = dict(self._all("SELECT name, value FROM meta"))
            if "base_url" not in meta:
                told = {**self.owner._asdict(), "key": "", "tenant": ""}
                rows = [(name, json.dumps(value)) for name, value in told.items()]
                self._db.executemany("INSERT INTO meta VALUES (?, ?)", rows)
                meta = dict(rows)
            self.meta: dict[str, Any] = {name: json.loads(text) for name, text in meta.items()}
            self.is_foreign = bool(self.meta.get("lent"))
            with suppress(sqlite3.OperationalError):  # the disk is full: those stay for later
                self._db.execute(_LOST)
            query = "SELECT coalesce(max(seq), 0), coalesce(sum(size), 0), coalesce(sum(ready), 0)"
            ((self.old, self.bytes, self.pending),) = self._all(f"{query} FROM entries")
            ((self.dead,),) = self._all("SELECT count(*) FROM dead")
            self._reader = self._connected()
        except BaseException:
            self._db.close()
            raise

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path, timeout=5.0, isolation_level=None, check_same_thread=False
        )

    def _all(self, query: str, *values: object) -> list[Any]:
        return self._db.execute(query, values).fetchall()

    # --- what any thread calls ---

    def append(self, rows: Sequence[Row]) -> None:
        """Store entries, all or none: from then on they survive this process, not a power cut.

        Raises `Full`, and sqlite3.Error where the disk does not take them.
        """
        now, size = int(time.time()), 0
        values = []
        for row in rows:
            cost = _OVERHEAD + len(row.body)
            size += cost
            values.append((row.run, row.what, row.span, row.ready, now, cost, row.body))
        with self.lock:
            if self.bytes + self.others + size > self.most:
                raise Full(f"The spool {self.path.parent} has reached {self.most} bytes.")
            if len(values) == 1:
                self._db.execute(_INSERT, values[0])
            else:
                with self._transaction():
                    self._db.executemany(_INSERT, values)
            self.bytes += size
            self.pending += sum(row.ready for row in rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self.lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # Where the disk is full SQLite may have rolled back already.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    # --- what the sender calls ---

    def ready(self, after: int, count: int, most: int) -> list[Item]:
        """Return the next runs that can be sent: up to `count`, and `most` bytes or one."""
        with self.reading:
            query = "SELECT seq, run, what, at FROM entries WHERE ready = 1 AND seq > ? LIMIT ?"
            found: list[Item] = []
            total = 0
            for seq, run, what, at in self._reader.execute(query, (after, count)).fetchall():
                sizes = "SELECT coalesce(sum(size), 0) FROM entries WHERE run = ?"
                total += self._reader.execute(sizes, (run,)).fetchone()[0]
                if found and total > most:
                    break
                inside = "SELECT what, span, body FROM entries WHERE run = ? ORDER BY seq"
                entries = self._reader.execute(inside, (run,)).fetchall()
                found.append(Item(seq, run, what, at, seq <= self.old, entries))
            return found

    def remove(self, runs: Iterable[str]) -> None:
        """Forget runs, which have arrived. Raises sqlite3.Error where the disk is full."""
        left = list(runs)
        while left:
            batch, left = left[:_AT_ONCE], left[_AT_ONCE:]
            with self._transaction():
                self._forget(batch)

    def bury(self, run: str, status: int, detail: str, body: str | bytes) -> None:
        """Keep what the service will never take apart, with its reason."""
        with self._transaction():
            row = (run, int(time.time()), status, detail, body)
            self._db.execute("INSERT INTO dead VALUES (?, ?, ?, ?, ?)", row)
            self._db.execute(_BURY_LESS, (self.most // 10,))
            self._forget([run])
        self.dead += 1

    def _forget(self, runs: Sequence[str]) -> None:
        marks = ",".join("?" * len(runs))
        these = f"FROM entries WHERE run IN ({marks})"
        query = f"SELECT coalesce(sum(size), 0), coalesce(sum(ready), 0) {these}"
        ((size, ready),) = self._all(query, *runs)
        self._db.execute(f"DELETE {these}", runs)
        self.bytes -= size
        self.pending -= ready

    def start_over(self, gone: Iterable[str]) -> None:
        """Begin the file anew without these runs: deleting them takes space, which there is none.

        What else it holds passes through memory.
        """
        with self.reading, self.lock:
            lost = set(gone)
            kept = [
                row
                for row in self._all(f"SELECT {_COLUMNS} FROM entries ORDER BY seq")
                if row[0] not in lost
            ]
            dead, meta = self._all("SELECT * FROM dead"), self._all("SELECT * FROM meta")
            self._db.close()
            self._reader.close()
            self._unlink()
            self._connect()
            with self._transaction():
                self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta)
                self._db.executemany(_INSERT, kept)
                self._db.executemany("INSERT INTO dead VALUES (?, ?, ?, ?, ?)", dead)
            self.bytes, self.pending = sum(row[5] for row in kept), sum(row[3] for row in kept)
            self.dead = len(dead)

    def note(self, name: str, value: object) -> None:
        """Keep a fact about the file."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps(value)))
        self.meta[name] = value

    def tend(self) -> None:
        """Move the journal into the file where it has grown, and give back free pages."""
        self.others = max(0, held_bytes(self.path.parent) - self._own_bytes())
        with suppress(FileNotFoundError), self.reading:
            grown = Path(f"{self.path}-wal").stat().st_size > _CHECKPOINT_BYTES
            if grown or self.is_refused:
                # Where the disk is full, this makes what room there is.
                self.is_refused = False
                frames = self._checkpoint()
                if frames * _PAGE > 4 * _CHECKPOINT_BYTES:
                    # Appends came as fast as they were moved: the last few are, while none comes.
                    self._checkpoint()
                    with self.lock:
                        self._checkpoint()
        if self._all("PRAGMA freelist_count")[0][0] > 2 * _VACUUM_PAGES:
            with self.lock:
                self._all(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    def _checkpoint(self) -> int:
        """Move what the journal has; return how many pages it had."""
        ((_, frames, _),) = self._reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return int(frames)

    def _own_bytes(self) -> int:
        return sum(each.stat().st_size for each in self._parts() if each.exists())

    def _unlink(self) -> None:
        for each in self._parts():
            each.unlink(missing_ok=True)

    def _parts(self) -> list[Path]:
        return [Path(f"{self.path}{end}") for end in ("", "-wal", "-shm")]

    def close(self) -> None:
        """Close the file, which another process may then take over."""
        with self.reading, self.lock:
            self._reader.close()
            self._db.close()
            self._lock_file.release()


def own(place: Path, owner: Owner, most: int) -> Spool:
    """Return a file of this owner that no process holds, or a new one. Raises OSError."""
    number = 0
    while True:
        path = place / f"{owner.file}-{number}.sqlite"
        try:
            lock = Lock(path.with_suffix(".lock"))
        except BlockingIOError:
            number += 1
            continue
        return Spool(path, lock, owner, most)


def left(place: Path, owner: Owner, tenant: str, most: int) -> Generator[Spool, None, None]:
    """Yield the files of dead processes with entries that this owner may send; closes each after.

    They are this key's, or its tenant's. What a key that never worked left is taken by the key that
    replaced it, where both came from the environment and the agent is the same.
    """
    for path in sorted(place.glob("*.sqlite")):
        try:
            lock = Lock(path.with_suffix(".lock"))
        except BlockingIOError:
            continue
        try:
            opened = Spool(path, lock, owner, most)
        except (sqlite3.Error, OSError) as error:
            # One file that cannot be read must not keep those behind it.
            log.error("The spool's file %s cannot be opened: %s", path, error)
            continue
        with closing(opened) as found:
            is_own = path.name.startswith(f"{owner.file}-")
            theirs = found.meta
            if not found.pending or theirs["base_url"] != owner.base_url:
                continue
            if not is_own:
                mended = theirs["from_environment"] and owner.from_environment
                mended = mended and theirs["agent"] == owner.agent
                if not (theirs["tenant"] == tenant if theirs["tenant"] else mended):
                    continue
                found.note("lent", "yes")
                found.is_foreign = True
            yield found


def _files(place: Path) -> Iterator[sqlite3.Connection]:
    """Yield each file of a spool, to be read, which has its tables already."""
    for path in sorted(place.glob("*.sqlite")):
        address = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as database:
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchall():
                yield database


def held(place: Path) -> dict[str, Any]:
    """Return what all files of a spool hold, whoever has them: nothing of them is changed.

    `waiting` counts runs that can be sent, `oldest` is when the first of them was appended.
    """
    found = {"files": 0, "waiting": 0, "dead": 0}
    times = []
    for database in _files(place):
        query = "SELECT count(*), min(at) FROM entries WHERE ready = 1"
        waiting, oldest = database.execute(query).fetchone()
        (dead,) = database.execute("SELECT count(*) FROM dead").fetchone()
        for name, count in (("files", 1), ("waiting", waiting), ("dead", dead)):
            found[name] += count
        times += [oldest] if waiting else []
    corrupt, oldest = len(list(place.glob("*.corrupt-*"))), min(times, default=None)
    return {**found, "bytes": held_bytes(place), "corrupt": corrupt, "oldest": oldest}


def dead_letters(place: Path) -> Iterator[dict[str, Any]]:
    """Yield what services refused for good: run, time, status, reason and body, of all files."""
    for database in _files(place):
        for run, at, status, detail, body in database.execute("SELECT * FROM dead"):
            yield {"run": run, "at": at, "status": status, "detail": detail, "body": body}
