"""JSON indented for people, bounded: nested deeply, a text becomes hundreds of times as long."""

from json import JSONEncoder
from typing import Any


def beginning(value: Any, most: int, indent: int = 2) -> str:
    """Return a value as indented JSON, if that has no more than `most` characters.

    Of a longer one it is a beginning that is longer than `most`. Raises `RecursionError`.
    """
    parts: list[str] = []
    size = 0
    for part in JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
        parts.append(part)
        size += len(part)
        if size > most:
            break
    return "".join(parts)
