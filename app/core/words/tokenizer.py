"""The tokenizer: splits text into words, indexed as keyed hashes (a blind index).

A record's key is a secret, so expired content leaves no readable word in dead rows or index keys.
A word is a run of letters, digits and marks, compared by NFKC and casefold; Chinese, Japanese and
Thai are split into pairs. No stemming.
"""

import itertools
import json
import re
import unicodedata
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

# Longer runs are not indexed: people do not type them.
_MOST_CHARACTERS = 64
# Words indexed per record; search does not find later ones.
MOST_WORDS = 5_000
_MOST_TEXT = 256 * 1024
_BYTES = 9
# PostgreSQL keeps no more positions of a lexeme.
_MOST_POSITIONS = 255

# Normalisation sorts marks in quadratic time of the run's length, so texts are cut into pieces.
_PIECE = 256
# Combining marks belong to the letter before them, but `\w` lacks them. Those of living scripts:
_MARKS = "".join(
    re.escape(chr(point))
    for point in (*range(0x300, 0x3000), *range(0xA66F, 0xAC00), *range(0xFE20, 0xFE30))
    if unicodedata.category(chr(point)).startswith("M")
)
_WORD = re.compile(rf"[^\W_](?:[^\W_]|[{_MARKS}])*")
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_RUNS = re.compile(rf"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_TERM = re.compile(r'"([^"]*)"|(\S+)')


def in_text(text: str) -> list[str]:
    """Return the normalised words of a text, in order."""
    text = text[:_MOST_TEXT]
    tokens = (text.lower(),) if text.isascii() else map(_normal, text.split())
    return [part for token in tokens for word in _WORD.findall(token) for part in _parts(word)]


def _normal(token: str) -> str:
    pieces = (token[at : at + _PIECE] for at in range(0, len(token), _PIECE))
    return "".join(unicodedata.normalize("NFKC", piece) for piece in pieces).casefold()


def _parts(word: str) -> Iterator[str]:
    """Yield a word as it is, or the bigrams of runs in scripts without spaces."""
    if _IS_UNSPACED.search(word) is None:
        if len(word) <= _MOST_CHARACTERS:
            yield word
        return
    for run in _RUNS.findall(word):
        if _IS_UNSPACED.match(run) and len(run) > 1:
            yield from (run[at : at + 2] for at in range(len(run) - 1))
        elif len(run) <= _MOST_CHARACTERS:
            yield run


def taken_apart(texts: Iterable[str]) -> list[Sequence[str]]:
    """Tokenize texts up to `MOST_WORDS` in all; search does not find later words."""
    found: list[Sequence[str]] = []
    left = MOST_WORDS
    for text in texts:
        found.append(in_text(text)[:left])
        left -= len(found[-1])
        if left <= 0:
            break
    return found


def in_json(value: Any) -> Iterator[str]:
    """Yield the strings and numbers in a JSON value as texts, without the names of members."""
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
    """Turns one tenant's words into lexemes, and these into a `tsvector` or `tsquery`."""

    def __init__(self, key: bytes, size: int = _BYTES) -> None:
        """Use the tenant's search key, or for what lies beside them in clear, its id.

        `size` is how many bytes of its hash name a word. With 5, beside a million other words, one
        search in a million finds another's row.
        """
        self._key = key
        self._size = size

    def vector(self, texts: Iterable[Sequence[str]], pairs: Mapping[str, str]) -> str:
        """Return a `tsvector` of the words of texts, and of pairs of name and value.

        Each two neighbouring words of a text are a lexeme of their own, with its positions: by the
        words' positions, a search for two frequent words would read every row that has both. The
        positions of two texts do not follow each other, so a phrase never spans both.
        """
        found: dict[str, list[int]] = {self._pair(name, value): [] for name, value in pairs.items()}
        position = 0
        for words in texts:
            found.update((self._word(word), []) for word in words)
            for at, both in enumerate(itertools.pairwise(words), position):
                found.setdefault(self._neighbours(*both), []).append(at + 1)
            position += len(words)
        if any(len(positions) > _MOST_POSITIONS for positions in found.values()):
            found[self._incomplete] = []
        return " ".join(
            f"'{lexeme}':{','.join(map(str, at[:_MOST_POSITIONS]))}" if at else f"'{lexeme}'"
            for lexeme, at in found.items()
        )

    def query(self, typed: str) -> str | None:
        """Return a search text as a `tsquery`: all words, those in "quotes" as a phrase.

        None when it has no word.
        """
        terms = [
            self._term(words)
            for quoted, plain in _TERM.findall(typed)
            if (words := in_text(quoted or plain))
        ]
        return " & ".join(terms) or None

    def _term(self, words: Sequence[str]) -> str:
        if len(words) == 1:
            return f"'{self._word(words[0])}'"
        pairs = [f"'{self._neighbours(*both)}'" for both in itertools.pairwise(words)]
        if len(pairs) == 1:
            return pairs[0]
        # In a list of hundreds of dates not every position of "2026-11" is stored: there, all
        # neighbours suffice.
        unplaced = " & ".join([*pairs, f"'{self._incomplete}'"])
        return f"(({' <-> '.join(pairs)}) | ({unplaced}))"

    def pairs_query(self, pairs: Iterable[tuple[str, str]]) -> str | None:
        """Return a `tsquery` that requires all pairs; None when there are none."""
        return " & ".join(f"'{self._pair(name, value)}'" for name, value in pairs) or None

    @property
    def _incomplete(self) -> str:
        """The lexeme of a row with more positions than are stored."""
        return self._hash(b"\0")

    def _word(self, word: str) -> str:
        return self._hash(word.encode())

    def _neighbours(self, first: str, second: str) -> str:
        # Words contain no zero byte, and pairs begin with a number.
        return self._hash(f"\0{first}\0{second}".encode())

    def _pair(self, name: str, value: str) -> str:
        # Words contain no zero byte, so a pair never equals a word.
        return self._hash(f"{len(name)}\0{name}{value}".encode())

    def _hash(self, what: bytes) -> str:
        digest = blake2b(what, key=self._key, digest_size=self._size).digest()
        return urlsafe_b64encode(digest).decode().rstrip("=")
