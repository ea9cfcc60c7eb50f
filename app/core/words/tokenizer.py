"""The tokenizer: splits text into words, stored as keyed hashes (a blind index).

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

# Longer runs are not indexed: people do not type them.
_MOST_CHARACTERS = 64
# Words indexed per record; search does not find later ones.
MOST_WORDS = 5_000
_MOST_TEXT = 256 * 1024
_MOST_TOGETHER = 16
_BYTES = 9

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
    pieces = (text[at : at + _PIECE] for at in range(0, min(len(text), _MOST_TEXT), _PIECE))
    normal = "".join(unicodedata.normalize("NFKC", piece) for piece in pieces).casefold()
    return [part for word in _WORD.findall(normal) for part in _parts(word)]


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


@dataclass(frozen=True)
class Text:
    """A tokenized text: its words in order, and the words of each unspaced token of several."""

    words: Sequence[str]
    together: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, text: str) -> "Text":
        """Tokenize a text."""
        tokens = [tuple(in_text(token)) for token in text[:_MOST_TEXT].split()]
        words = [word for token in tokens for word in token]
        return cls(words, frozenset(token for token in tokens if 1 < len(token) <= _MOST_TOGETHER))


def taken_apart(texts: Iterable[str]) -> list[Text]:
    """Tokenize texts up to `MOST_WORDS`; search does not find later words."""
    found, count = [], 0
    for text in texts:
        found.append(Text.of(text))
        count += len(found[-1].words) + 1
        if count >= MOST_WORDS:
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

    def __init__(self, key: bytes) -> None:
        """Use the tenant's search key, 32 bytes."""
        self._key = key

    def vector(self, texts: Iterable[Text], pairs: Mapping[str, str]) -> str:
        """Return a `tsvector` of the words of texts, and of pairs of name and value.

        A gap between the positions of two texts keeps a phrase from spanning both.
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
        """Return a search text as a `tsquery`: all words, those in "quotes" as a phrase.

        None when it has no word.
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
        # PostgreSQL stores 256 positions of a lexeme, so in a long list of "order-1", "order-2" …
        # later phrases do not match. Tokens indexed whole all match.
        return f"('{self._together(words)}' | ({phrase}))"

    def pairs_query(self, pairs: Iterable[tuple[str, str]]) -> str | None:
        """Return a `tsquery` that requires all pairs; None when there are none."""
        return " & ".join(f"'{self._pair(name, value)}'" for name, value in pairs) or None

    def _word(self, word: str) -> str:
        return self._hash(word.encode())

    def _together(self, words: Sequence[str]) -> str:
        # Words contain no zero byte, and pairs begin with a number.
        return self._hash(b"\0" + "\0".join(words).encode())

    def _pair(self, name: str, value: str) -> str:
        # Words contain no zero byte, so a pair never equals a word.
        return self._hash(f"{len(name)}\0{name}{value}".encode())

    def _hash(self, what: bytes) -> str:
        digest = blake2b(what, key=self._key, digest_size=_BYTES).digest()
        return urlsafe_b64encode(digest).decode()
