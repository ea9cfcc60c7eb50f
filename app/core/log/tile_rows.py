"""Tiles in the database: the widest of each, and entry bundles (level -1)."""

from collections.abc import Iterable, Mapping

from sqlalchemy.orm import Session

from app.core.log.generations import Generation
from app.database import Tx, cursor
from app.errors import LogDamaged
from app.ledger import tiles
from app.ledger.tiles import TileId

_READ = """
SELECT t.level, t.number, t.data
  FROM unnest(%b::bigint[], %b::bigint[]) AS asked (level, number)
  JOIN log_tiles AS t ON t.generation = %b AND t.level = asked.level AND t.number = asked.number
"""
_WRITE = """
INSERT INTO log_tiles (generation, level, number, data)
SELECT %b, level, number, data
  FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[]) AS t (level, number, data)
ON CONFLICT (generation, level, number) DO UPDATE SET data = EXCLUDED.data
"""


def read(tx: Tx, generation: Generation, wanted: Iterable[TileId]) -> dict[TileId, bytes]:
    """Return the tiles that are stored at these places, each as wide as it is by now."""
    places = list(wanted)
    if not places:
        return {}
    columns = ([place.level for place in places], [place.number for place in places])
    rows = cursor(tx).execute(_READ, (*columns, generation.number), binary=True)
    return {TileId(level, number): data for level, number, data in rows}


def write(session: Session, generation: Generation, grown: Mapping[TileId, bytes]) -> None:
    """Store tiles in place of narrower ones."""
    columns = (
        [place.level for place in grown],
        [place.number for place in grown],
        list(grown.values()),
    )
    cursor(session).execute(_WRITE, (generation.number, *columns))


def root(tx: Tx, generation: Generation, size: int) -> bytes:
    """Return the root at a size, out of the stored tiles. Raises `LogDamaged` if they are short."""
    found = read(tx, generation, [each.id for each in tiles.edge(size)])
    try:
        return tiles.root(size, found.__getitem__)
    except (KeyError, ValueError):
        raise LogDamaged(f"A tile of the tree at size {size} is missing or too narrow.") from None
