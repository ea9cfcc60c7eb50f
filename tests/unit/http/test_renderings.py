"""Renderings kept for a moment: the same bytes, made once, never more than there is room for."""

import os
from collections.abc import Iterator

import pytest

from app.api.http import answers
from app.api.http.answers import Renderings

TEXT = b'{"activity":{}}' * 10_000


def in_parts(whole: bytes) -> Iterator[bytes]:
    return (whole[start : start + 4096] for start in range(0, len(whole), 4096))


def read(kept: Iterator[bytes] | None) -> bytes | None:
    return None if kept is None else b"".join(kept)


@pytest.mark.parametrize("whole", [b"", b"1", TEXT, os.urandom(100_000)])
def test_what_is_kept_is_what_was_made(whole: bytes) -> None:
    renderings = Renderings(1024 * 1024)
    made, complete = renderings.made("etag", in_parts(whole))

    assert complete
    assert read(made) == whole
    assert read(renderings.get("etag")) == whole
    assert renderings.get("another") is None


def test_what_is_too_large_to_be_kept_is_given_out_all_the_same() -> None:
    whole = os.urandom(100_000)
    renderings = Renderings(100_000)
    made, complete = renderings.made("etag", in_parts(whole))

    assert not complete
    assert read(made) == whole
    assert renderings.get("etag") is None


def test_the_oldest_makes_room_for_the_newest() -> None:
    renderings = Renderings(100_000)
    for number in range(5):
        renderings.made(str(number), in_parts(os.urandom(30_000)))

    kept = [number for number in range(5) if renderings.get(str(number)) is not None]
    assert kept == [2, 3, 4]


def test_making_it_again_counts_it_once() -> None:
    renderings = Renderings(100_000)
    whole = os.urandom(40_000)
    for _ in range(10):
        renderings.made("etag", in_parts(whole))

    assert read(renderings.get("etag")) == whole


def test_nothing_is_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    renderings = Renderings(1024 * 1024)
    monkeypatch.setattr(answers, "KEPT_SECONDS", 0.0)
    renderings.made("etag", in_parts(TEXT))

    assert renderings.get("etag") is None
    assert not renderings._kept
