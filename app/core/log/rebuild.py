"""Rebuilding: the tiles once more, from the leaves alone, beside those that are stored.

It streams, a batch of leaves at a time: in memory are the batch and the partial tiles at its end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from app.core.log import generations, publication, tile_rows
from app.core.log.generations import Generation
from app.database import cursor
from app.errors import Conflict, LogDamaged
from app.ledger import entry_bundles, merkle, tiles
from app.ledger.tiles import ENTRIES, Tile, TileId

_BATCH = 64 * tiles.WIDTH

_LEAVES = """
SELECT leaf_index, leaf_hash, data FROM log_leaves
 WHERE generation = %b AND leaf_index >= %b AND leaf_index < %b ORDER BY leaf_index
"""
_STORED = "SELECT level, number FROM log_tiles WHERE generation = %s ORDER BY level, number"


@dataclass
class Report:
    """What was read and what differs: `wrong` are the tiles whose stored bytes are others."""

    leaves: int = 0
    tiles: int = 0
    wrong: list[TileId] = field(default_factory=list)

    @property
    def first(self) -> str | None:
        """The path of the first tile that differs, or that should not be there."""
        return Tile(*min(self.wrong)).path if self.wrong else None


def rebuild(session: Session, *, repair: bool) -> Report:
    """Compute every tile of the log anew; with `repair` store those that differ.

    To look takes a session with a snapshot; to repair holds the log, so nothing is integrated
    meanwhile. Raises `LogDamaged` when the leaves themselves do not give the root of the last
    checkpoint.
    """
    generation = generations.lock(session, wait=True) if repair else generations.newest(session)
    if generation is None:
        raise Conflict("The log has not begun.")
    cursor(session).execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
    last = publication.stored(session, generation)
    report, root = Report(), merkle.EMPTY_ROOT
    expected: set[TileId] = set()
    for grown, computed in _grown(session, generation, last.size, report):
        root = computed
        expected.update(grown)
        _compare(session, generation, grown, report, repair=repair)
    if root != last.root:
        raise LogDamaged(
            f"The {report.leaves} leaves give another root than the checkpoint at {last.size}: "
            "the leaves were changed, or the checkpoint was."
        )
    _drop_strays(session, generation, expected, report, repair=repair)
    if repair:
        generations.mark(session, generation.number, head_kept=False, trouble=None)
    return report


def _grown(
    session: Session, generation: Generation, size: int, report: Report
) -> Iterator[tuple[dict[TileId, bytes], bytes]]:
    """Yield the tiles that are as wide as they get, and the root so far."""
    edge: dict[TileId, bytes] = {}
    for start in range(0, size, _BATCH):
        end = min(start + _BATCH, size)
        data = _data(session, generation, start, end)
        growth = tiles.grow(start, edge.__getitem__, [merkle.leaf_hash(each) for each in data])
        bundles = entry_bundles.grow(start, b"", data)
        final = {TileId(ENTRIES, number): entries for number, entries in bundles.items()}
        edge |= growth.changed
        partial = {each.id for each in tiles.edge(end)}
        done = [where for where in edge if where not in partial or end == size]
        final |= {where: edge.pop(where) for where in done}
        report.leaves = end
        report.tiles += len(final)
        yield final, growth.root


def _data(session: Session, generation: Generation, start: int, end: int) -> list[bytes]:
    rows = cursor(session).execute(_LEAVES, (generation.number, start, end), binary=True).fetchall()
    if [row[0] for row in rows] != list(range(start, end)):
        there = {row[0] for row in rows}
        missing = next(index for index in range(start, end) if index not in there)
        raise LogDamaged(f"Leaf {missing} is missing.")
    for index, leaf_hash, data in rows:
        if merkle.leaf_hash(data) != leaf_hash:
            raise LogDamaged(f"The hash of leaf {index} is not that of its data.")
    return [row[2] for row in rows]


def _compare(
    session: Session,
    generation: Generation,
    computed: Mapping[TileId, bytes],
    report: Report,
    *,
    repair: bool,
) -> None:
    found = tile_rows.read(session, generation, computed)
    wrong = {where: data for where, data in computed.items() if found.get(where) != data}
    report.wrong += wrong
    if repair and wrong:
        tile_rows.write(session, generation, wrong)


def _drop_strays(
    session: Session,
    generation: Generation,
    expected: set[TileId],
    report: Report,
    *,
    repair: bool,
) -> None:
    """Find tiles of a larger tree than there is."""
    cur = cursor(session)
    rows = cur.execute(_STORED, (generation.number,), binary=True).fetchall()
    strays = [TileId(*row) for row in rows if TileId(*row) not in expected]
    report.wrong += strays
    if repair:
        cur.executemany(
            "DELETE FROM log_tiles WHERE generation = %s AND level = %s AND number = %s",
            [(generation.number, *stray) for stray in strays],
        )
