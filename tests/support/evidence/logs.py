"""What tests of the log stand on: leaves by the thousand, stores and databases that fail, and a
world that remembers every tree it was ever told of."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from app import ids
from app.core.log import generations, head_guard, publication, rebuild
from app.core.log.head_store import FileHead, HeadStore
from app.core.log.publication import Prepared
from app.core.log.rebuild import Report
from app.core.log.sequencer import Sequencer, prepare
from app.database import Database, cursor
from app.errors import LogHalted, LogHeadUnavailable
from app.ledger import leaves, merkle
from app.ledger.notes import Checkpoint, Note
from app.lib.crypto.sealing import MasterKeys
from app.settings import Settings
from tests.support.database.databases import empty

ORIGIN = "records.test/log"
# One bit of a stored tile, by the statement that its owner may make.
FLIP = "UPDATE log_tiles SET data = set_byte(data, 40, get_byte(data, 40) # 1)"
Owner = Callable[..., None]
"""Executes statements as the owner of the tables, whom row-level security does not bind."""

_INSERT = """
INSERT INTO log_leaves (id, leaf_hash, data)
SELECT * FROM unnest(%b::uuid[], %b::bytea[], %b::bytea[])
"""


class Killed(BaseException):
    """The process ended here."""


def add_leaves(database: Database, count: int) -> list[bytes]:
    """Have leaves wait for the log, as records leave them; return their hashes."""
    data = [leaves.record(secrets.token_bytes(32)) for _ in range(count)]
    hashes = [merkle.leaf_hash(each) for each in data]
    keys = [ids.new() for _ in data]
    with database.across_tenants() as session:
        cursor(session).execute(_INSERT, (keys, hashes, data))
    return hashes


class FailingHead:
    """A head store that fails when its turn comes, before or after the swap has happened."""

    def __init__(self, store: HeadStore, error: type[BaseException] = LogHeadUnavailable) -> None:
        self._store = store
        self._error = error
        self.seen: list[bytes] = []
        self.before_read = self.before_swap = self.after_swap = 0

    def read(self) -> bytes | None:
        """Read, or fail."""
        self._maybe("before_read")
        return self._store.read()

    def swap(self, old: bytes | None, new: bytes) -> bool:
        """Swap, and fail before or after it."""
        self._maybe("before_swap")
        done = self._store.swap(old, new)
        if done:
            self.seen.append(new)
        self._maybe("after_swap")
        return done

    def _maybe(self, moment: str) -> None:
        turns = getattr(self, moment)
        if turns:
            setattr(self, moment, turns - 1)
            if turns == 1:
                raise self._error("the store of the test fails")


class FailingDatabase:
    """A database of which one transaction fails: before its commit, or although it was made."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.at: int | None = None
        self.committed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @contextmanager
    def across_tenants(self, *, snapshot: bool = False) -> Iterator[Session]:
        """Open a transaction; the one whose turn it is ends with `Killed`."""
        mine = self.at == 0
        self.at = None if self.at is None or mine else self.at - 1
        with self._database.across_tenants(snapshot=snapshot) as session:
            yield session
            if mine and not self.committed:
                raise Killed
        if mine:
            raise Killed


def failing(world: "World", fault: dict[str, Any]) -> tuple[FailingHead, FailingDatabase]:
    """Return a log's head and database, which fail as it is said by the names of their moments."""
    assert world.store is not None
    head, database = FailingHead(world.store), FailingDatabase(world.database)
    for name, value in fault.items():
        setattr(head if hasattr(head, name) else database, name, value)
    return head, database


@dataclass
class World:
    """A log with all its parts, and every checkpoint that was seen of it."""

    database: Database
    master_keys: MasterKeys
    store: HeadStore | None
    seen: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def sequencer(self, **changed: Any) -> Sequencer:
        """Return a sequencer as a fresh process has it."""
        database = changed.get("database", self.database)
        head = changed.get("head", self.store)
        return Sequencer(database, self.master_keys, ORIGIN, head, changed.get("gate"))

    def prepare(self) -> Prepared | None:
        """Prepare the next checkpoint, and stop there."""
        with self.database.across_tenants() as session:
            return prepare(session, self.master_keys, ORIGIN)

    def grow(self, count: int) -> list[bytes]:
        """Publish so many leaves more; return their hashes."""
        hashes = add_leaves(self.database, count)
        self.sequencer().run()
        return hashes

    def published(self) -> publication.Published:
        """Return the last checkpoint, with its signature verified."""
        with self.database.across_tenants() as session:
            last = publication.current(session)
            assert last is not None
        note = Note.parse(last.note)
        assert note.signed_by([last.generation.verifier_key])
        assert note.text == last.checkpoint.text
        return last

    def check_consistency(self, *heads: bytes) -> None:
        """Hold every note and head against all that was seen before: one tree a size, for ever."""
        head = None if self.store is None else self.store.read()
        for each in (*heads, *self._notes(), *([] if head is None else [head])):
            found = Checkpoint.parse(each.decode())
            assert self.seen.setdefault((found.origin, found.size), found.root) == found.root

    def prove(self) -> None:
        """Hold every tree ever seen of the current log against its leaves."""
        self.check_consistency()
        last = self.published()
        hashes = self.hashes()
        assert len(hashes) == last.checkpoint.size
        for (origin, size), root in self.seen.items():
            if origin == last.checkpoint.origin:
                assert merkle.root(hashes[:size]) == root

    def hashes(self) -> list[bytes]:
        """Return the leaves' hashes in the log's order."""
        with self.database.across_tenants() as session:
            rows = cursor(session).execute(
                "SELECT leaf_index, leaf_hash FROM log_leaves WHERE generation ="
                " (SELECT max(generation) FROM log_generations) ORDER BY leaf_index"
            )
            found = rows.fetchall()
        assert [row[0] for row in found] == list(range(len(found)))
        return [bytes(row[1]) for row in found]

    def waiting(self) -> int:
        """Return how many leaves have no place."""
        with self.database.across_tenants() as session:
            row = cursor(session).execute(
                "SELECT count(*) FROM log_leaves WHERE leaf_index IS NULL OR generation <"
                " (SELECT max(generation) FROM log_generations)"
            )
            return int((row.fetchone() or (0,))[0])

    def rebuild(self, *, repair: bool = False) -> Report:
        """Have the log computed anew, as `log rebuild` does."""
        kept = None if self.store is None else self.store.read()
        head = None if kept is None else head_guard.read(kept)
        keys = self.master_keys if repair else None
        with self.database.across_tenants(snapshot=not repair) as session:
            return rebuild.rebuild(session, head, repair_with=keys)

    def halted(self, kind: type[LogHalted]) -> str:
        """Hold the log to sign nothing, for this reason; return what is said."""
        before = self.published().note
        with pytest.raises(kind) as refusal:
            self.sequencer().tick(float("inf"))
        assert self.published().note == before
        assert generations.load_state(self.database).trouble == kind.slug
        self.check_consistency()
        return refusal.value.detail

    def _notes(self) -> list[bytes]:
        with self.database.across_tenants() as session:
            rows = cursor(session).execute("SELECT note FROM checkpoints WHERE note IS NOT NULL")
            return [Note.parse(bytes(row[0])).text.encode() for row in rows.fetchall()]


class Closed:
    """A gate that admits nothing: what is signed is a candidate, for as long as it stands."""

    def admits(self, _session: Session, _candidate: publication.Published) -> bool:
        """Admit nothing."""
        return False


def killed(work: Callable[[], object]) -> bool:
    """Run something that may be killed or refused by its stores; return whether it was."""
    try:
        work()
    except (Killed, LogHeadUnavailable):
        return True
    return False


@contextmanager
def new_world(log_settings: Settings, log_owner: Engine, folder: Path) -> Iterator[World]:
    """Have a log that has not begun, in an empty database, with its head in this folder."""
    empty(log_owner)
    database = Database(log_settings.database_url, application="tests")
    yield World(database, log_settings.master_keys, FileHead(folder / "head"))
    database.close()


TABLES = ("log_generations", "log_leaves", "log_tiles", "checkpoints")


def dump(owner: Owner) -> None:
    """Keep the log's tables as a backup would."""
    owner(
        *(f"DROP TABLE IF EXISTS kept_{table}" for table in TABLES),
        *(f"CREATE TABLE kept_{table} AS TABLE {table}" for table in TABLES),
    )


def restore(owner: Owner) -> None:
    """Put the log's tables back to where the backup had them."""
    owner(
        *(f"DELETE FROM {table}" for table in ("log_leaves", *TABLES[2:], "log_generations")),
        "INSERT INTO log_generations SELECT * FROM kept_log_generations",
        "INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)"
        " SELECT id, leaf_hash, data, generation, leaf_index FROM kept_log_leaves",
        *(f"INSERT INTO {table} SELECT * FROM kept_{table}" for table in TABLES[2:]),
    )
