"""Entries of a log of 70,000 leaves."""

from collections.abc import Sequence

from app.ledger import tiles
from app.ledger.tiles import ENTRIES, TileId

MANY = 70_000
ENTRY_DATA = [f"entry {number}".encode() for number in range(MANY)]
Stored = dict[TileId, bytes]


def grown_entries(stored: Stored, size: int, entries: Sequence[bytes]) -> None:
    last = stored[TileId(ENTRIES, size // 256)] if size % 256 else b""
    for number, bundle in tiles.grow_entries(size, last, entries).items():
        stored[TileId(ENTRIES, number)] = bundle
