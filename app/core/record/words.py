"""The words by which records are found, and how they are kept: as keyed hashes, never as words.

PostgreSQL's full text search works on lexemes and does not care what they say. Ours are keyed
hashes of the words, under a key of the tenant's own (a "blind index"). So what expired leaves no
word behind, neither in dead rows nor among an index's keys, which PostgreSQL never removes; and
every tenant has posting lists of its own, however many share the table.

A word is a run of letters and digits, compared without case (Unicode NFKC, casefold). There is no
stemming and no stop word: the texts of a tenant may be in any language.
"""

import json
import re
import unicodedata
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

# A longer run is no word that somebody will type.
_MOST_CHARACTERS = 64
# Of one record; what comes later in its content is not found by search.
MOST_WORDS = 5_000
_MOST_TEXT = 256 * 1024
_BYTES = 9

_WORD = re.compile(r"[^\W_]+")
_TERM = re.compile(r'"([^"]*)"|(\S+)')


def in_text(text: str) -> list[str]:
    """Return the words of a text, in order, as they are compared."""
    normal = unicodedata.normalize("NFKC", text[:_MOST_TEXT]).casefold()
    return [word for word in _WORD.findall(normal) if len(word) <= _MOST_CHARACTERS]


def in_json(value: Any) -> Iterator[str]:
    """Walk a JSON value and yield its strings and numbers as texts, names of members aside."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield json.dumps(item)


class Lexemes:
    """Turns one tenant's words into lexemes, and those into what PostgreSQL takes."""

    def __init__(self, key: bytes) -> None:
        """Take the tenant's search key, 32 bytes."""
        self._key = key

    def vector(self, texts: Iterable[str], pairs: Mapping[str, str]) -> str:
        """Write a `tsvector` of the words of texts, and of pairs of name and value as wholes.

        Words of one text follow each other, words of two do not: a phrase never spans both.
        """
        positions: dict[str, list[int]] = {}
        place = 0
        for text in texts:
            for word in in_text(text):
                place += 1
                positions.setdefault(self._word(word), []).append(place)
                if place >= MOST_WORDS:
                    break
            place += 1
            if place >= MOST_WORDS:
                break
        words = [f"'{lexeme}':{','.join(map(str, at))}" for lexeme, at in positions.items()]
        wholes = [f"'{self._pair(name, value)}'" for name, value in pairs.items()]
        return " ".join([*words, *wholes])

    def query(self, typed: str) -> str | None:
        """Write what somebody typed as a `tsquery`: all words, those in "quotes" as a phrase.

        None when it holds no word at all.
        """
        terms = []
        for quoted, plain in _TERM.findall(typed):
            found = [f"'{self._word(word)}'" for word in in_text(quoted or plain)]
            if found:
                terms.append(f"({' <-> '.join(found)})")
        return " & ".join(terms) or None

    def pairs_query(self, pairs: Iterable[tuple[str, str]]) -> str | None:
        """Write pairs that must all be there as a `tsquery`; None when there are none."""
        return " & ".join(f"'{self._pair(name, value)}'" for name, value in pairs) or None

    def _word(self, word: str) -> str:
        return self._hash(word.encode())

    def _pair(self, name: str, value: str) -> str:
        # No word holds a zero byte, so a pair is never taken for one.
        return self._hash(f"{len(name)}\0{name}{value}".encode())

    def _hash(self, what: bytes) -> str:
        digest = blake2b(what, key=self._key, digest_size=_BYTES).digest()
        return urlsafe_b64encode(digest).decode()
