"""Entry bundles: the leaves' data, 256 to a bundle (C2SP tlog-tiles, "Log entries").

Each entry is its length as a uint16, big-endian, and then its bytes. As with tiles, a partial
bundle is the beginning of the full one, and only the widest is stored.
"""

from collections.abc import Iterable, Sequence

from app.ledger.tiles import WIDTH

MAX_ENTRY_BYTES = 0xFFFF
_PREFIX = 2


def encode(entries: Iterable[bytes]) -> bytes:
    """Write entries one behind the other. Raises ValueError for one of more than 65,535 bytes."""
    parts: list[bytes] = []
    for each in entries:
        if len(each) > MAX_ENTRY_BYTES:
            raise ValueError(f"An entry has {MAX_ENTRY_BYTES} bytes at most, not {len(each)}.")
        parts += (len(each).to_bytes(_PREFIX, "big"), each)
    return b"".join(parts)


def parse(bundle: bytes) -> list[bytes]:
    """Read all entries. Raises ValueError unless it is 1 to 256 of them and nothing else."""
    entries = []
    at, end = 0, len(bundle)
    # Of a whole log that is millions: no call that is not needed.
    while at + _PREFIX <= end:
        start = at + _PREFIX
        at = start + (bundle[at] << 8 | bundle[at + 1])
        entries.append(bundle[start:at])
    if at != end:
        raise ValueError("An entry bundle ends within an entry, or has too few.")
    if not 0 < len(entries) <= WIDTH:
        raise ValueError(f"An entry bundle has 1 to {WIDTH} entries, not {len(entries)}.")
    return entries


def cut(bundle: bytes, to: int) -> bytes:
    """Return the bundle of the first `to` entries. Raises ValueError if it has fewer."""
    entries = parse(bundle)
    if not 0 < to <= len(entries):
        raise ValueError(f"An entry bundle of {len(entries)} entries has no first {to}.")
    return encode(entries[:to])


def grow(old_size: int, last: bytes, entries: Sequence[bytes]) -> dict[int, bytes]:
    """Append entries to a log of `old_size`; return the bundles to store anew, by number.

    `last` is the stored partial bundle number old_size // 256, empty if there is none. Raises
    ValueError if it has not as many entries as the size says.
    """
    number, held = divmod(old_size, WIDTH)
    if (len(parse(last)) if last else 0) != held:
        raise ValueError(f"Entry bundle {number} does not hold {held} entries.")
    grown = {}
    start = 0
    while start < len(entries):
        end = start + WIDTH - held
        grown[number] = last + encode(entries[start:end])
        number, held, last, start = number + 1, 0, b"", end
    return grown
