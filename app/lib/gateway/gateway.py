"""The ASGI application that runs a WSGI application in threads."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

from app.lib.gateway import answers, bodies
from app.lib.gateway.answers import Answer, Application, ReaderTooSlow, Send
from app.lib.gateway.bodies import BodyCutShort, BodyTooSlow, Pace, Receive
from app.lib.gateway.environ import environ
from app.lib.gateway.streams import BodyWanted, Failed, Pending
from app.lib.gateway.threads import Threads
from app.lib.gateway.turns import Turns
from app.lib.shares import NoShare, Shares

# A body up to here is read before anybody asks for it: that costs no thread and little memory.
SMALL_BODY = 64 * 1024
_KEPT = 2
# In the environ of a request that the application has seen before, without its body.
AGAIN = "gateway.again"

Scope: TypeAlias = Mapping[str, Any]
Run: TypeAlias = Callable[[Callable[[Any], Any], object], Awaitable[Any]]


@dataclass(frozen=True)
class Limits:
    """How slow senders and readers may be, and how many bytes of late bodies are held at once."""

    body: Pace
    answer: Pace
    late_bodies: Shares


class Gateway:
    """Serves a WSGI application by ASGI.

    `caller` names who sent a request, as far as its scope tells: callers take turns at the threads,
    and none has more than half of them. `urgent` are paths that two threads are kept for.
    `on_slow_reader` hears of every answer that was given up.
    """

    def __init__(
        self,
        application: Application,
        threads: int,
        limits: Limits,
        *,
        caller: Callable[[Scope], object] = lambda scope: (scope.get("client") or ("",))[0],
        urgent: Collection[str] = (),
        on_slow_reader: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        self._application = application
        self._limits = limits
        self._urgent = urgent
        self._on_slow_reader = on_slow_reader
        self._caller = caller
        self._threads = Threads(threads, "request")
        self._turns = Turns(threads, max(threads // 2, 1))
        self._kept = Threads(_KEPT, "urgent")
        self._kept_turns = Turns(_KEPT, _KEPT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI HTTP specification 2.3)."""
        run = self._runner(scope)
        stream = await self._stream(scope, receive)
        try:
            answer = await self._call(run, environ(scope, stream))
        except BodyWanted as wanted:
            answer = await self._with_late_body(run, scope, receive, wanted)
        try:
            await answers.send(
                answer,
                send,
                lambda: run(answer.pull, None),
                self._limits.answer,
                scope.get("client") or ("", ""),
            )
        except ReaderTooSlow:
            self._on_slow_reader(answer)
        finally:
            if not answer.closed:
                await run(answer.close, None)

    def _runner(self, scope: Scope) -> Run:
        """Return what has a thread make a call when it is the turn of the request's caller."""
        urgent = scope["path"] in self._urgent
        threads, turns = (self._kept, self._kept_turns) if urgent else (self._threads, self._turns)
        caller = None if urgent else self._caller(scope)

        async def run(call: Callable[[Any], Any], argument: object) -> Any:
            async with turns.turn(caller):
                return await threads.run(call, argument)

        return run

    async def _call(self, run: Run, made: dict[str, Any]) -> Answer:
        """Run the application; after a body that failed the connection ends."""
        answer: Answer = await run(self._answer, made)
        if isinstance(made["wsgi.input"], Failed):
            answer.headers.append((b"connection", b"close"))
        return answer

    def _answer(self, made: dict[str, Any]) -> Answer:
        return Answer(self._application, made)

    async def _stream(self, scope: Scope, receive: Receive) -> object:
        """Return the body of a request that has a small one, or none; else a promise of it."""
        length = _length(scope)
        if length == 0:
            return BytesIO()
        if length is None or length > SMALL_BODY:
            return Pending()
        return await self._read(receive, length)

    async def _with_late_body(
        self, run: Run, scope: Scope, receive: Receive, wanted: BodyWanted
    ) -> Answer:
        """Call the application again with the body it wants, if there is memory for that."""
        size = min(_length(scope) or wanted.most, wanted.most)
        try:
            with self._limits.late_bodies.held(wanted.whose, size):
                stream = await self._read(receive, wanted.most)
                return await self._call_again(run, scope, stream)
        except NoShare as refused:
            return await self._call_again(run, scope, Failed(refused))

    async def _call_again(self, run: Run, scope: Scope, stream: object) -> Answer:
        return await self._call(run, {**environ(scope, stream), AGAIN: True})

    async def _read(self, receive: Receive, most: int) -> object:
        try:
            return BytesIO(await bodies.read(receive, self._limits.body, most))
        except (BodyTooSlow, BodyCutShort) as error:
            return Failed(error)


def _length(scope: Scope) -> int | None:
    """Return the declared length of the body, 0 for none; None where it is not known or awaited.

    A sender that expects `100 Continue` is told to go on once somebody reads (RFC 9110 section
    10.1.1): the application may refuse it first.
    """
    length = 0
    for name, value in scope["headers"]:
        if name in (b"transfer-encoding", b"expect"):
            return None
        if name == b"content-length" and value.isdigit():
            length = int(value)
    return length
