"""Rebuilds what is stored of the log from its leaves: tiles, entry bundles, rows, checkpoints.

A leaf has two copies, its row and its place in the entry bundle; the tile of level 0 decides
between them. Nothing is changed unless all leaves give the published tree. A note that is signed
again has the same bytes: a signature of Ed25519 is deterministic.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from app import ids
from app.core import signing_keys
from app.core.log import generations, head_guard, publication, tile_rows
from app.core.log.generations import Generation
from app.core.log.publication import StoredCheckpoint
from app.core.log.tree_walk import TreeWalk
from app.database import cursor, database_now
from app.errors import Conflict, LogDamaged
from app.ledger import leaves, tiles
from app.ledger.merkle import HASH_BYTES, leaf_hash
from app.ledger.notes import Checkpoint
from app.ledger.tiles import ENTRIES, WIDTH, Tile, TileId
from app.lib.crypto.sealing import CannotOpen, MasterKeys

# So many leaves have a row behind `size`, one after the other. A row far behind is no leaf.
_FOLLOWING = """
SELECT count(*)
  FROM (SELECT leaf_index, %(size)s + row_number() OVER (ORDER BY leaf_index) - 1 AS place
          FROM log_leaves WHERE generation = %(generation)s AND leaf_index >= %(size)s) AS rows
 WHERE leaf_index = place
"""
_ROWS = """
SELECT leaf_index, leaf_hash, data FROM log_leaves
 WHERE generation = %b AND leaf_index >= %b AND leaf_index < %b
"""
_BY_HASH = "SELECT data FROM log_leaves WHERE leaf_hash = ANY (%b)"
# A row at a place that is not its own waits for its own, or for the next; one that is no leaf goes.
_FREE = """
UPDATE log_leaves SET generation = NULL, leaf_index = NULL
 WHERE generation = %s AND leaf_index = ANY (%s)
"""
_DROP = "DELETE FROM log_leaves WHERE generation = %s AND leaf_index = ANY (%s)"
_PUT = """
INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)
SELECT id, leaf_hash, data, %b, leaf_index
  FROM unnest(%b::uuid[], %b::bytea[], %b::bytea[], %b::bigint[])
       AS t (id, leaf_hash, data, leaf_index)
    ON CONFLICT (leaf_hash) DO UPDATE
   SET data = excluded.data, generation = excluded.generation, leaf_index = excluded.leaf_index
"""
_STORED = "SELECT level, number FROM log_tiles WHERE generation = %s ORDER BY level, number"
_DROP_TILE = "DELETE FROM log_tiles WHERE generation = %s AND level = %s AND number = %s"
_PREPARED = "SELECT FROM checkpoints WHERE generation = %s AND note IS NULL AND size > %s"
# Of two prepared ones the newer tree holds the other, also what a witness has cosigned of it.
_WITHDRAW = """
WITH withdrawn AS (
    SELECT generation, size FROM checkpoints
     WHERE generation = %s AND note IS NULL AND size <> %s),
     cosigned AS (
    DELETE FROM checkpoint_cosignatures AS s USING withdrawn AS w
     WHERE s.generation = w.generation AND s.size = w.size)
DELETE FROM checkpoints AS c USING withdrawn AS w
 WHERE c.generation = w.generation AND c.size = w.size
"""
_RESTORE = """
INSERT INTO checkpoints AS c (generation, size, root, note, published_at)
VALUES (%(generation)s, %(size)s, %(root)s, %(note)s,
        CASE WHEN %(note)s::bytea IS NOT NULL THEN clock_timestamp() END)
    ON CONFLICT (generation, size) DO UPDATE
   SET root = excluded.root,
       note = excluded.note,
       published_at = CASE WHEN excluded.note IS NOT NULL
                           THEN coalesce(c.published_at, excluded.published_at) END
"""


_Row = tuple[bytes, bytes]
"""A leaf's hash and data, as `log_leaves` has them."""


@dataclass
class Report:
    """Counts of what was read, and differences from what should be stored.

    `wrong` are the tiles whose bytes are others, or that should not be there; `rows` how many
    leaves have another row in `log_leaves`, or none, and rows of no leaf; `checkpoint` is the size
    whose row is missing or wrong.
    """

    leaves: int = 0
    tiles: int = 0
    wrong: list[TileId] = field(default_factory=list)
    rows: int = 0
    checkpoint: int | None = None

    @property
    def first(self) -> str | None:
        """The path of the first tile that differs."""
        return Tile(*min(self.wrong)).path if self.wrong else None

    @property
    def is_identical(self) -> bool:
        """Whether everything is stored as it has to be."""
        return not self.wrong and not self.rows and self.checkpoint is None

    def lines(self, *, repair: bool) -> Iterator[str]:
        """Yield what was found, and with `repair` put right, for a person."""
        yield f"{self.leaves} leaves, {self.tiles} tiles"
        if self.is_identical:
            yield "every stored tile is identical"
            return
        if self.wrong:
            yield f"{len(self.wrong)} tiles differ, the first is {self.first}"
        if self.rows:
            yield f"{self.rows} leaves have no row in log_leaves, or another's"
        if self.checkpoint is not None:
            yield f"the checkpoint at {self.checkpoint} is missing or was changed"
        yield "they were written anew" if repair else "nothing was changed"


def rebuild(
    session: Session, head: Checkpoint | None, *, repair_with: MasterKeys | None = None
) -> Report:
    """Compute all of the newest log anew; with keys to sign by, store what differs.

    `head` is what was read outside before, if anything. A check takes a session with a snapshot; a
    repair holds the log, so nothing is integrated meanwhile. Raises `LogRolledBack` where the head
    is of another tree, `LogDamaged` where what is left cannot give the tree that was published.
    """
    repair = repair_with is not None
    generation = generations.lock(session, wait=True) if repair else generations.newest(session)
    if generation is None:
        raise Conflict("The log has not begun.")
    head = head if head is not None and head.origin == generation.origin else None
    last, newest = publication.row(session, generation), publication.newest(session, generation)
    candidate = publication.candidate(session, generation)
    told = [] if head is None else [head]
    told += [] if candidate is None else [candidate.checkpoint]
    known = [*told, *(each.checkpoint for each in (last, newest) if each is not None)]
    sizes = {each.size for each in known}
    place = {"generation": generation.number, "size": max(sizes, default=0)}
    following = cursor(session).execute(_FOLLOWING, place).fetchone() or (0,)
    try:
        report, roots = _grown(
            session, generation, place["size"] + following[0], sizes, repair=repair
        )
    except LogDamaged:
        if head is not None and (last is None or head.size > last.checkpoint.size):
            raise head_guard.rolled_back(session, generation, head) from None
        raise
    right = {size: Checkpoint(generation.origin, size, roots[size]) for size in sorted(roots)}
    rows = {size: publication.row(session, generation, size) for size in right}
    _require_published(session, generation, right, rows, head, last)
    # Others have this tree, or the log has signed it, up to here.
    signed = [row.signed for row in rows.values() if row is not None and row.signed is not None]
    proven = max((each.size for each in (*told, *signed) if each in right.values()), default=0)
    for size, row in rows.items():
        if row is None:
            is_right = size < max(right)
        else:
            good_note = row.note is None or row.signed == right[size]
            is_right = good_note and row.checkpoint == right[size]
        if not is_right:
            report.checkpoint = size
            if repair_with is not None:
                restore_checkpoint(session, repair_with, right[size], generation, row, proven)
    if repair:
        generations.mark(session, generation.number, head_kept=False, trouble=None)
    return report


def _require_published(
    session: Session,
    generation: Generation,
    right: Mapping[int, Checkpoint],
    rows: Mapping[int, StoredCheckpoint | None],
    head: Checkpoint | None,
    last: StoredCheckpoint | None,
) -> None:
    """Raise `LogRolledBack` or `LogDamaged` unless the leaves' tree is the one that was published.

    That is the head's, or without one the newest row's; and no size that the log signed has
    another: it never signs two of one size.
    """
    signed = [row.signed for row in rows.values() if row is not None and row.signed is not None]
    wrong = [each.size for each in signed if right.get(each.size, each) != each]
    if head is not None and right[head.size] != head:
        row = rows[head.size]
        if row is None or row.checkpoint.root != head.root:
            raise head_guard.rolled_back(session, generation, head)
        wrong = [head.size]
    elif last is None and head is None:
        raise LogDamaged(
            f"Not one checkpoint of {generation.origin} is left, and none is kept outside: "
            "nothing shows what was published."
        )
    elif last is not None and (head is None or head.size < last.checkpoint.size):
        found = right[last.checkpoint.size]
        wrong = [found.size] if found not in (last.checkpoint, last.signed) else wrong
    if wrong:
        raise LogDamaged(
            f"The leaves give another root than {generation.origin} published at {wrong[0]}: more "
            "of them were changed than their copies can tell. Restore these tables from a backup."
        )


def _grown(
    session: Session, generation: Generation, size: int, sizes: set[int], *, repair: bool
) -> tuple[Report, dict[int, bytes]]:
    """Grow the tree again, compare rows and tiles with it; return the roots at `sizes` as well.

    Raises `LogDamaged` where a leaf is lost.
    """
    cur, number = cursor(session), generation.number
    cur.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
    beyond = _rows(session, generation, size, 2**63 - 1)
    report = Report(leaves=size, rows=len(beyond))
    if repair:
        _free(session, generation, beyond)
    walk = TreeWalk(generation, size, sizes, exact=True, repair=repair)
    for first in range(0, size, WIDTH):
        stop = min(first + WIDTH, size)
        rows = _rows(session, generation, first, stop)
        data = _leaves(session, generation, first, stop, rows)
        right = {index: (leaf_hash(each), each) for index, each in enumerate(data, first)}
        wrong = [index for index, row in right.items() if rows.get(index) != row]
        report.rows += len(wrong)
        if repair and wrong:
            _free(session, generation, {at: row for at, row in rows.items() if at in wrong})
            now = database_now(session)
            put = zip(*((ids.new(now), *right[index], index) for index in wrong), strict=True)
            cur.execute(_PUT, (number, *map(list, put)))
        walk.add(session, data)
    stored = cur.execute(_STORED, (number,), binary=True).fetchall()
    strays = [TileId(*row) for row in stored if TileId(*row) not in walk.compared]
    if repair:
        cur.executemany(_DROP_TILE, [(number, *stray) for stray in strays])
    report.tiles, report.wrong = len(walk.compared), walk.wrong + strays
    return report, walk.roots


def _leaves(
    session: Session, generation: Generation, first: int, stop: int, rows: Mapping[int, _Row]
) -> list[bytes]:
    """Return the data of a bundle's leaves: of each the copy that its tile names, or any.

    Raises `LogDamaged` for a leaf without a copy.
    """
    places = [TileId(ENTRIES, first // WIDTH), TileId(0, first // WIDTH)]
    stored = tile_rows.read(session, generation, places)
    tile = stored.get(places[1], b"")
    digests = [tile[at : at + HASH_BYTES] for at in range(0, len(tile), HASH_BYTES)]
    try:
        bundle = dict(enumerate(tiles.parse_entries(stored.get(places[0], b"")), first))
    except ValueError:
        bundle = {}
    here = {index: data for index, (_, data) in rows.items()} | bundle
    elsewhere = cursor(session).execute(_BY_HASH.encode(), (digests,), binary=True).fetchall()
    copies = (
        *bundle.values(),
        *(data for _, data in rows.values()),
        *(row[0] for row in elsewhere),
    )
    by_hash = {leaf_hash(each): each for each in copies}
    named = dict(enumerate(digests, first))
    found = []
    for index in range(first, stop):
        data = by_hash.get(named.get(index, b""), here.get(index))
        if data is None:
            raise LogDamaged(f"Leaf {index} of {generation.origin} is lost: no copy is left.")
        found.append(data)
    return found


def _rows(session: Session, generation: Generation, first: int, stop: int) -> dict[int, _Row]:
    asked = (generation.number, first, stop)
    rows = cursor(session).execute(_ROWS.encode(), asked, binary=True).fetchall()
    return {index: (digest, data) for index, digest, data in rows}


def _free(session: Session, generation: Generation, rows: Mapping[int, _Row]) -> None:
    """Have rows wait that are at a place not their own; what is no leaf goes."""
    kept = [
        index
        for index, (digest, data) in rows.items()
        if leaves.may_wait(data) and leaf_hash(data) == digest
    ]
    cursor(session).execute(_FREE, (generation.number, kept))
    cursor(session).execute(_DROP, (generation.number, list(rows)))


def restore_checkpoint(
    session: Session,
    master_keys: MasterKeys,
    right: Checkpoint,
    generation: Generation,
    row: StoredCheckpoint | None,
    proven: int,
) -> None:
    """Put the row of a checkpoint right that the leaves prove.

    A note that is good stays. One that is not is signed again up to the size `proven`; beyond it
    the row is prepared again, and the next integration signs it, once the head outside says the
    same. Raises `LogDamaged` where no integration would.
    """
    cur, number, size = cursor(session), generation.number, right.size
    note = None
    if row is not None and row.signed == right:
        note = row.note
    elif row is not None and row.note is not None and size <= proven:
        try:
            key = signing_keys.opened(session, master_keys, generation.key_id)
        except (LookupError, CannotOpen) as error:
            raise LogDamaged(
                f"The checkpoint at {size} of {generation.origin} has to be signed again, and the "
                f"log's key does not open: {error}"
            ) from None
        note = bytes(right.sign(publication.signer(generation, key)))
    else:
        follows = cur.execute(_PREPARED, (number, size)).fetchone() is not None
        if follows and (row is None or row.note is not None):
            raise LogDamaged(
                f"The checkpoint at {size} of {generation.origin} has no note that the log signed, "
                "and nothing that others hold shows its tree. Restore that row from a backup."
            )
        cur.execute(_WITHDRAW, (number, size))
    place = {"generation": number, "size": size}
    cur.execute(_RESTORE, place | {"root": right.root, "note": note})
