"""The sequencer: takes the log from waiting leaves to a published checkpoint, in three commits.

1. PostgreSQL: indexes, tiles and the prepared (size, root).
2. The head outside: compare-and-swap to the prepared tree.
3. PostgreSQL: the checkpoint is signed and published, or a candidate.

`run` first finishes what a crash left; docs/architecture.md has each case.
"""

import time

from psycopg.errors import UniqueViolation
from sqlalchemy.orm import Session

from app.core.log import generations, head_guard, publication, tile_rows
from app.core.log.generations import Generation
from app.core.log.head_store import HeadStore
from app.core.log.publication import Gate, Prepared
from app.database import Database, cursor
from app.errors import LogDamaged, LogHalted
from app.ledger import merkle, tiles
from app.ledger.notes import Checkpoint
from app.ledger.tiles import ENTRIES, TileId
from app.lib.crypto.sealing import MasterKeys

BATCH = 16_384
"""How many leaves one transaction takes at most: about half a second of work."""

# However the table grew since it was analysed, the batch's rows are found by their keys (ANY) and
# joined by a hash: with statistics of an almost empty table, a nested loop reads the whole batch
# again for each of its rows. And an overloaded host may take its time to hash the leaves: only
# other integrations wait.
_PLAN = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_nestloop = off;"
    "SET LOCAL idle_in_transaction_session_timeout = '60s'"
)
_TAKE = """
WITH waiting AS ({waiting} LIMIT %(most)s),
     placed AS MATERIALIZED (
    SELECT id, %(size)s + row_number() OVER (ORDER BY {order}) - 1 AS leaf_index FROM waiting)
UPDATE log_leaves AS l SET generation = %(generation)s, leaf_index = placed.leaf_index
  FROM placed WHERE l.id = placed.id AND l.id = ANY (ARRAY(SELECT id FROM placed))
RETURNING l.leaf_index, l.leaf_hash, l.data
"""
_NEW = _TAKE.format(
    waiting="SELECT id FROM log_leaves WHERE leaf_index IS NULL ORDER BY id", order="id"
)
# Leaves of ended logs that the database still has come first, in their order there.
_INHERITED = _TAKE.format(
    waiting="SELECT id, generation, leaf_index FROM log_leaves"
    " WHERE generation < %(generation)s AND leaf_index IS NOT NULL ORDER BY generation, leaf_index",
    order="generation, leaf_index",
)


def prepare(
    session: Session, master_keys: MasterKeys, origin: str, most: int = BATCH
) -> Prepared | None:
    """Return the next checkpoint to publish: one found unpublished, else of at most `most` leaves.

    Begins the log under `origin` if there is none. None when nothing waits, or another is at it.
    Raises `LogDamaged` when what is stored does not give the last checkpoint's root.
    """
    if generations.newest(session) is None:
        generations.begin(session, master_keys, origin)
    generation = generations.lock(session, wait=False)
    if generation is None:
        return None
    generations.require_appointed(master_keys, generation)
    return publication.prepared(session, generation) or _grow(session, generation, most)


def _grow(session: Session, generation: Generation, most: int) -> Prepared | None:
    """Give waiting leaves their places and prepare the tree that they make."""
    published = publication.newest(session, generation)
    if published is None:
        raise LogDamaged(f"Not one checkpoint of {generation.origin} is left.")
    before, cur = published.checkpoint, cursor(session)
    cur.execute(_PLAN, prepare=False)
    taken: list[tuple[int, bytes, bytes]] = []
    for query in (_INHERITED, _NEW) if generation.predecessor else (_NEW,):
        place = {"generation": generation.number, "size": before.size + len(taken)}
        values = {**place, "most": most - len(taken)}
        try:
            taken += cur.execute(query.encode(), values, binary=True).fetchall()
        except UniqueViolation:
            raise LogDamaged(
                f"There are leaves beyond size {before.size}, which is the last."
            ) from None
    if not taken:
        return None
    now = grow(session, generation, before, sorted(taken))
    return publication.prepare(session, generation, now, published)


def grow(
    session: Session,
    generation: Generation,
    before: Checkpoint,
    taken: list[tuple[int, bytes, bytes]],
) -> Checkpoint:
    """Store the tiles of a tree that grows by leaves (index, hash, data), entry bundles among them.

    Raises `LogDamaged` where what is stored does not give the root of `before`.
    """
    hashes = [merkle.leaf_hash(data) for *_, data in taken]
    if hashes != [leaf_hash for _, leaf_hash, _ in taken]:
        raise LogDamaged("A waiting leaf's hash is not that of its data.")
    number, held = divmod(before.size, tiles.WIDTH)
    partial = [each.id for each in tiles.edge(before.size)] + [TileId(ENTRIES, number)]
    edge = tile_rows.read(session, generation, partial)
    try:
        growth = tiles.grow(before.size, edge.__getitem__, hashes)
        last = edge[TileId(ENTRIES, number)] if held else b""
        bundles = tiles.grow_entries(before.size, last, [data for *_, data in taken])
    except (KeyError, ValueError) as error:
        why = f"{error} is missing." if isinstance(error, KeyError) else error
        raise LogDamaged(f"The tiles do not end at size {before.size}: {why}") from None
    if growth.old_root != before.root:
        raise LogDamaged(f"The tiles give another root than was published at {before.size}.")
    grown = {TileId(ENTRIES, number): data for number, data in bundles.items()}
    tile_rows.write(session, generation, {**growth.changed, **grown})
    return Checkpoint(generation.origin, before.size + len(taken), growth.root)


_CHECK_SECONDS = 10.0


class Sequencer:
    """Keeps one database's log; as many may run at once as like to."""

    def __init__(
        self,
        database: Database,
        master_keys: MasterKeys,
        origin: str,
        head: HeadStore | None,
        gate: Gate | None = None,
    ) -> None:
        """`origin` names the log when it begins; from then on the database knows its name.

        Nothing is published that `gate` does not admit.
        """
        self.database = database
        self.head = head
        self._gate = gate
        self._master_keys = master_keys
        self._origin = origin
        self._check_at = 0.0

    def tick(self, until: float) -> bool:
        """Do what is due, at most until `until` (monotonic); return whether more waits.

        When nothing waits that is one statement, and now and then a check of the head. Raises
        `LogHalted`, at most every ten seconds while nothing changes.
        """
        seen = generations.load_state(self.database)
        due = time.monotonic() >= self._check_at
        if due:
            self._check_at = time.monotonic() + _CHECK_SECONDS
            self.check()
        elif seen.trouble is not None:
            return False
        return seen.waits and self.run(until)

    def run(self, until: float = float("inf"), most: int = BATCH) -> bool:
        """Publish all that waits, a batch at a time; return whether the time ran out before.

        Ends where the gate admits nothing yet. Raises `LogHalted` when nothing may be signed, and
        notes it for `/readyz`.
        """
        try:
            while True:
                with self.database.across_tenants() as session:
                    work = prepare(session, self._master_keys, self._origin, most)
                if work is None or not self._finish(work):
                    return False
                if time.monotonic() > until:
                    return True
        except LogHalted as error:
            self._note(error)
            raise

    def check(self) -> None:
        """Hold what was published last against its tiles and the head.

        A first head is kept, an old one moved on. Raises as `run` does.
        """
        try:
            with self.database.across_tenants() as session:
                last = publication.current(session)
                if last is not None:
                    head_guard.check_stored(session, last)
            if last is None or self.head is None:
                return
            if self.head.read() != head_guard.text(last.checkpoint):
                # What is held is what was signed, so no damaged row becomes the head.
                work = Prepared(last.generation, last.checkpoint, None)
                head_guard.advance(self.database, self.head, work)
        except LogHalted as error:
            self._note(error)
            raise
        generation = last.generation
        # Damage is known to be mended once a checkpoint has been made of the stored tree.
        damaged = generation.trouble == LogDamaged.slug
        if not generation.head_kept or (generation.trouble is not None and not damaged):
            trouble = generation.trouble if damaged else None
            with self.database.across_tenants() as session:
                generations.mark(session, generation.number, head_kept=True, trouble=trouble)

    def _finish(self, work: Prepared) -> bool:
        """Publish what was prepared, or have others do so; False while the gate holds it back."""
        if self._gate is not None:
            # It may say no for hours, so it is asked before the head store is.
            with self.database.across_tenants() as session:
                candidate = publication.candidate(session, work.generation)
                is_it = candidate is not None and candidate.checkpoint == work.checkpoint
                if candidate and is_it and not self._gate.admits(session, candidate):
                    return False
        if self.head is not None and not head_guard.advance(self.database, self.head, work):
            return True
        with self.database.across_tenants() as session:
            return publication.publish(
                session, self._master_keys, work, head_kept=self.head is not None, gate=self._gate
            )

    def _note(self, error: LogHalted) -> None:
        with self.database.across_tenants() as session:
            generation = generations.newest(session)
            if generation is not None:
                generations.mark(session, generation.number, head_kept=False, trouble=error.slug)
