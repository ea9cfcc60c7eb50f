"""Integration: waiting leaves get their indexes, and the tree grows by them.

Indexes, tiles and the prepared checkpoint are written in the caller's transaction, under the log's
lock. Leaves are taken in the order of their ids; one whose transaction commits late is taken by a
later run.
"""

from typing import Any

from psycopg.errors import UniqueViolation
from sqlalchemy.orm import Session

from app.core.log import generations, publication, tile_rows
from app.core.log.generations import Generation
from app.core.log.publication import Prepared
from app.database import cursor
from app.errors import LogDamaged
from app.ledger import entry_bundles, merkle, tiles
from app.ledger.checkpoints import Checkpoint
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
    published = publication.newest(session, generation)
    if published is None:
        raise LogDamaged(f"Not one checkpoint of {generation.origin} is left.")
    before = published.checkpoint
    taken = _take(session, generation, before.size, most)
    if not taken:
        return None
    grown, root = _grown(session, generation, before, taken)
    tile_rows.write(session, generation, grown)
    now = Checkpoint(generation.origin, before.size + len(taken), root)
    return publication.prepare(session, generation, now, published)


def _take(
    session: Session, generation: Generation, size: int, most: int
) -> list[tuple[bytes, bytes]]:
    """Give leaves their indexes, from `size` on; return (hash, data) of each in that order."""
    cur = cursor(session)
    cur.execute(_PLAN, prepare=False)
    taken: list[tuple[int, bytes, bytes]] = []
    for query in (_INHERITED, _NEW) if generation.predecessor else (_NEW,):
        values = {
            "generation": generation.number,
            "size": size + len(taken),
            "most": most - len(taken),
        }
        try:
            taken += cur.execute(query.encode(), values, binary=True).fetchall()
        except UniqueViolation:
            raise LogDamaged(f"There are leaves beyond size {size}, which is the last.") from None
    return [(leaf_hash, data) for _, leaf_hash, data in sorted(taken)]


def _grown(
    session: Session, generation: Generation, before: Checkpoint, taken: list[tuple[bytes, bytes]]
) -> tuple[dict[TileId, bytes], bytes]:
    """Return the tiles to store, entry bundles among them, and the root."""
    hashes = [merkle.leaf_hash(data) for _, data in taken]
    if hashes != [leaf_hash for leaf_hash, _ in taken]:
        raise LogDamaged("A waiting leaf's hash is not that of its data.")
    edge = tile_rows.read(session, generation, tile_rows.edge(before.size))
    try:
        growth = tiles.grow(before.size, edge.__getitem__, hashes)
        number, held = divmod(before.size, tiles.WIDTH)
        last = edge[TileId(ENTRIES, number)] if held else b""
        bundles = entry_bundles.grow(before.size, last, [data for _, data in taken])
    except (KeyError, ValueError) as error:
        raise LogDamaged(f"The tiles do not end at size {before.size}: {_reason(error)}") from None
    if growth.old_root != before.root:
        raise LogDamaged(f"The tiles give another root than was published at {before.size}.")
    grown = {TileId(ENTRIES, number): data for number, data in bundles.items()}
    return {**growth.changed, **grown}, growth.root


def _reason(error: Any) -> str:
    return f"{error} is missing." if isinstance(error, KeyError) else str(error)
