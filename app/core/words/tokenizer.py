"""The tokenizer: words, kept as keyed hashes (a blind index).

The key is the tenant's, so expired content leaves no readable word in dead rows or index keys. A
word is a run of letters, digits and marks, compared by NFKC and casefold; Chinese, Japanese and
Thai are split into pairs. No stemming, no stop words.
"""

import json
import re
import unicodedata
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

# A longer run is no word that a person types.
_MOST_CHARACTERS = 64
# Of one record; what comes later in its content is not found by search.
MOST_WORDS = 5_000
_MOST_TEXT = 256 * 1024
_MOST_TOGETHER = 16
_BYTES = 9

# Normalising sorts marks, in a time that grows with the square of a run of them: so in pieces.
_PIECE = 256
# Marks belong to the letter before them; Python's `\w` has none. Those of the living scripts:
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
    """Return the words of a text, in order, as they are compared."""
    pieces = (text[at : at + _PIECE] for at in range(0, min(len(text), _MOST_TEXT), _PIECE))
    normal = "".join(unicodedata.normalize("NFKC", piece) for piece in pieces).casefold()
    return [part for word in _WORD.findall(normal) for part in _parts(word)]


def _parts(word: str) -> Iterator[str]:
    """Yield a word as it is, or each two characters in a row of a script without spaces."""
    if _IS_UNSPACED.search(word) is None:
        if len(word) <= _MOST_CHARACTERS:
            yield word
        return
    for run in _RUNS.findall(word):
        if _IS_UNSPACED.match(run) and len(run) > 1:
            yield from (run[at : at + 2] for at in range(len(run) - 1))
        elif len(run) <= _MOST_CHARACTERS:
            yield run


@dataclass(frozen=True)
class Text:
    """A text taken apart: its words in order, and what stands together in it, as words each."""

    words: Sequence[str]
    together: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, text: str) -> "Text":
        """Take a text apart."""
        tokens = [tuple(in_text(token)) for token in text[:_MOST_TEXT].split()]
        words = [word for token in tokens for word in token]
        return cls(words, frozenset(token for token in tokens if 1 < len(token) <= _MOST_TOGETHER))


def taken_apart(texts: Iterable[str]) -> list[Text]:
    """Take texts apart until they come to `MOST_WORDS`; no word after that is searched for."""
    found, count = [], 0
    for text in texts:
        found.append(Text.of(text))
        count += len(found[-1].words) + 1
        if count >= MOST_WORDS:
            break
    return found


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

    def vector(self, texts: Iterable[Text], pairs: Mapping[str, str]) -> str:
        """Write a `tsvector` of the words of texts, and of pairs of name and value as wholes.

        Words of one text follow each other, words of two do not: a phrase never spans both.
        """
        positions: dict[str, list[int]] = {}
        wholes = {self._pair(name, value) for name, value in pairs.items()}
        place = 0
        for text in texts:
            for word in text.words[: max(MOST_WORDS - place, 0)]:
                place += 1
                positions.setdefault(self._word(word), []).append(place)
            wholes.update(self._together(token) for token in text.together)
            place += 1
        words = [f"'{lexeme}':{','.join(map(str, at))}" for lexeme, at in positions.items()]
        return " ".join([*words, *(f"'{whole}'" for whole in wholes)])

    def query(self, typed: str) -> str | None:
        """Write a search text as a `tsquery`: all words, those in "quotes" as a phrase.

        None when it holds no word at all.
        """
        terms = [
            self._term(found, quoted=bool(quoted))
            for quoted, plain in _TERM.findall(typed)
            if (found := in_text(quoted or plain))
        ]
        return " & ".join(terms) or None

    def _term(self, words: Sequence[str], *, quoted: bool) -> str:
        phrase = " <-> ".join(f"'{self._word(word)}'" for word in words)
        if quoted or len(words) == 1:
            return f"({phrase})"
        # PostgreSQL knows 256 places of a lexeme: in a long list of orders the number of only so
        # many follows the word. As wholes all are known.
        return f"('{self._together(words)}' | ({phrase}))"

    def pairs_query(self, pairs: Iterable[tuple[str, str]]) -> str | None:
        """Write pairs that must all be there as a `tsquery`; None when there are none."""
        return " & ".join(f"'{self._pair(name, value)}'" for name, value in pairs) or None

    def _word(self, word: str) -> str:
        return self._hash(word.encode())

    def _together(self, words: Sequence[str]) -> str:
        # Words hold no zero byte, and pairs begin with a number.
        return self._hash(b"\0" + "\0".join(words).encode())

    def _pair(self, name: str, value: str) -> str:
        # No word holds a zero byte, so a pair is never taken for one.
        return self._hash(f"{len(name)}\0{name}{value}".encode())

    def _hash(self, what: bytes) -> str:
        digest = blake2b(what, key=self._key, digest_size=_BYTES).digest()
        return urlsafe_b64encode(digest).decode()
