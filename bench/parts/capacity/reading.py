"""What hostile JSON costs to read and to refuse, in time and in memory for each byte.

The documents have 900 KB each and their fault, if any, at their end.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from app.lib import strict_json
from bench.figures import Bound, Figure, Reach
from bench.lab import Lab
from bench.scale import Scale
from bench.traffic import hostile

_SIZE = 900_000
_BEYOND_INTEGERS = b"9007199254740993"
_TRIES = 5

# An empty list is 56 bytes of memory for two of text; a reading beyond it holds as much again.
_MOST_BYTES = 100
_MOST_NANOSECONDS = 2_000


def run(_: Lab, __: Scale) -> Iterator[Figure]:
    """Measure each document's refusal, and the named one's beside its parse."""
    deep = hostile.flat_with_a_deep_spot()
    flat = b"[" + b"[]," * 300_000 + b"[]]"
    parsed = _milliseconds(lambda: strict_json.parse(flat))
    refused = _milliseconds(lambda: _read(deep))
    yield Figure(
        "refusing 900 KB for one deep spot, beyond the parse",
        max(refused - parsed, 0.0),
        " ms",
        Bound("the same without it", parsed),
        Reach(at_most=20),
    )
    for words, raw in _documents().items():
        took = _milliseconds(partial(_read, raw)) * 1e6 / len(raw)
        yield Figure(f"reading {words}", took, " ns a byte", reach=Reach(at_most=_MOST_NANOSECONDS))
        yield Figure(
            f"memory of reading {words}",
            _peak(raw) / len(raw),
            " bytes a byte",
            reach=Reach(at_most=_MOST_BYTES),
        )


def _documents() -> Mapping[str, bytes]:
    def many(value: bytes, last: bytes) -> bytes:
        return b"[" + (value + b",") * (_SIZE // (len(value) + 1)) + last + b"]"

    nested = b"[" * 120 + b"]" * 120
    return {
        "empty lists and a deep spot": hostile.flat_with_a_deep_spot(),
        "lists in lists and an integer too large": many(b"[[1]]", _BEYOND_INTEGERS),
        "integers and one too large": many(b"0", _BEYOND_INTEGERS),
        "objects and a name that comes twice": many(b'{"a":1,"b":[]}', b'{"a":1,"a":2}'),
        "strings and half of a surrogate pair": many(b'"abc"', b'"\\ud800"'),
        "lists of 120 levels and an integer too large": many(nested, _BEYOND_INTEGERS),
        "quotes that are escaped": b'"' + b'\\"' * (_SIZE // 2) + b'"',
        "brackets alone": b"[" * _SIZE,
    }


def _read(raw: bytes) -> None:
    with suppress(strict_json.NotJSON, strict_json.NotIJSON):
        strict_json.parse(raw)


def _milliseconds(read: Callable[[], object]) -> float:
    """Return the processor time of the quickest of some tries."""

    def once() -> float:
        began = time.process_time()
        read()
        return (time.process_time() - began) * 1000

    return min(once() for _ in range(_TRIES))


def _peak(raw: bytes) -> int:
    tracemalloc.start()
    try:
        _read(raw)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
