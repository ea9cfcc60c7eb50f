"""Answers leave in pieces, within memory; slow readers are given up."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from app.lib.gateway import gateway as gateway_module
from app.lib.gateway.answers import PIECE
from app.lib.gateway.gateway import REFUSED
from tests.unit.http.gateway.exchange import NO_TIME, Environ, Exchange, gateway, serve, served


class Stream:
    """An answer of pieces, which knows how many were made, and when it was closed."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = iter(pieces)
        self.made = 0
        self.closed = False

    def __call__(self, made: Environ, start: Callable[..., Any]) -> "Stream":
        start("200 OK", [])
        return self

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.made += 1
            yield piece

    def close(self) -> None:
        """Hear that the answer has been sent or given up."""
        self.closed = True


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b""],
        [b"abc", b"", b"def"],
        [b"x" * PIECE],
        [b"x" * (PIECE + 1)],
        [b"x" * (3 * PIECE)],
        [b"x" * PIECE, b"y" * PIECE, b"z"],
        [b"x" * 1_000] * 1_000,
    ],
)
def test_an_answer_leaves_whole_and_in_pieces_that_are_not_large(pieces: list[bytes]) -> None:
    stream = Stream(*pieces)
    exchange = served(Exchange(), stream)
    assert exchange.body == b"".join(pieces)
    assert all(len(message["body"]) <= PIECE for message in exchange.sent[1:])
    more = [message.get("more_body", False) for message in exchange.sent[1:]]
    assert more == [True] * (len(more) - 1) + [False]
    assert stream.closed


def test_a_reader_that_reads_nothing_has_nothing_more_made_and_is_given_up() -> None:
    stream = Stream(*[b"x" * PIECE] * 10)
    exchange = Exchange()
    exchange.reads = False
    served(exchange, stream, answer=NO_TIME)
    assert stream.made == 1
    assert stream.closed


def test_readers_that_read_nothing_hold_no_thread() -> None:
    def stream(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [])
        return iter([b"x" * PIECE] * 10)

    async def scene() -> None:
        one = gateway(stream)
        slow = [Exchange() for _ in range(20)]
        for exchange in slow:
            exchange.reads = False
        tasks = [asyncio.create_task(serve(one, exchange)) for exchange in slow]
        quick = Exchange()
        await serve(one, quick)
        assert len(quick.body) == 10 * PIECE
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scene())


def test_a_refusal_for_want_of_room_is_held_back_and_holds_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "REFUSED_SECONDS", 600)

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if made["PATH_INFO"] == "/refused":
            made[REFUSED] = True
        start("200 OK", [])
        return [b"ok"]

    async def scene() -> None:
        one = gateway(application)
        refused = asyncio.create_task(serve(one, Exchange(path="/refused")))
        other = Exchange()
        await serve(one, other)
        assert other.body == b"ok"
        assert not refused.done()
        refused.cancel()
        await asyncio.gather(refused, return_exceptions=True)

    asyncio.run(scene())
