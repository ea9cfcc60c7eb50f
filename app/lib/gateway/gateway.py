"""The ASGI application that runs a WSGI application in threads."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from time import perf_counter
from typing import Any, TypeAlias

from app.lib.fair_shares import NoShare, Shares
from app.lib.gateway import answers, bodies
from app.lib.gateway.answers import Answer, Application, ReaderTooSlow, Send
from app.lib.gateway.bodies import BodyCutShort, BodyTooSlow, Pace, Receive
from app.lib.gateway.environ import environ
from app.lib.gateway.holdoff import Holdoff
from app.lib.gateway.streams import BodyWanted, Failed, Pending, Waiting
from app.lib.gateway.threads import Threads
from app.lib.gateway.turns import Turns

# A body up to here is read before the application asks for it: that takes no thread, little memory.
SMALL_BODY = 64 * 1024
_KEPT = 2
# In the environ of a request that the application has seen before, without its body.
AGAIN = "gateway.again"
# Whether the application may raise `Waiting`: not when it was waited for already.
CAN_WAIT = "gateway.can-wait"
# Since when, by `time.perf_counter`, all that a call needs was there but a thread to make it.
READY = "gateway.ready"
# Between two looks whether an answer is ready: soon at first.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWS_BY = 0.05, 0.5, 1.5
# The application puts here why it refused a request that would only be refused again for now, and
# finds it in REFUSED_BEFORE of one that repeats it too soon.
REFUSED = "gateway.refused"
REFUSED_BEFORE = "gateway.refused-before"

Scope: TypeAlias = Mapping[str, Any]
Run: TypeAlias = Callable[[Callable[[Any], Any], object], Awaitable[Any]]


@dataclass(frozen=True)
class Limits:
    """How slow senders and readers may be, and how many bytes of late bodies are held at once.

    `holdoff` is how many seconds a request waits that repeats one refused within as many.
    """

    body: Pace
    answer: Pace
    late_bodies: Shares
    holdoff: float = 1.0


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
        # A caller's large answers advance one at a time: many at once would wait for Python's one
        # lock (the GIL) in many threads, and all other callers behind them.
        self._pieces = Turns(max(threads // 4, _KEPT), 1)
        self._holdoff = Holdoff(limits.holdoff)
        self._kept = Threads(_KEPT, "urgent")
        self._kept_turns = Turns(_KEPT, _KEPT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI HTTP specification 2.3)."""
        caller = None if scope["path"] in self._urgent else self._caller(scope)
        what = (caller, scope["method"], scope["path"], _is_late(scope))
        if self._holdoff.why(what) is not None:
            await asyncio.sleep(self._holdoff.seconds)
        run = self._runner(scope, caller)
        stream = await self._stream(scope, receive)
        try:
            answer = await self._call(run, what, environ(scope, stream))
        except BodyWanted as wanted:
            answer = await self._with_late_body(run, what, scope, receive, wanted)
        except Waiting as waiting:
            await _wait(run, waiting)
            late = {**environ(scope, stream), AGAIN: True, CAN_WAIT: False}
            answer = await self._call(run, what, late)
        try:
            await answers.send(
                answer,
                send,
                lambda: self._pull(run, caller, answer),
                self._limits.answer,
                scope.get("client") or ("", ""),
            )
        except ReaderTooSlow:
            self._on_slow_reader(answer)
        finally:
            if not answer.closed:
                await run(answer.close, None)

    def _runner(self, scope: Scope, caller: object) -> Run:
        """Return what has a thread make a call when it is the turn of the request's caller."""
        urgent = scope["path"] in self._urgent
        threads, turns = (self._kept, self._kept_turns) if urgent else (self._threads, self._turns)

        async def run(call: Callable[[Any], Any], argument: object) -> Any:
            async with turns.turn(caller):
                return await threads.run(call, argument)

        return run

    async def _pull(self, run: Run, caller: object, answer: Answer) -> None:
        async with self._pieces.turn(caller):
            await run(answer.pull, None)

    async def _call(self, run: Run, what: object, made: dict[str, Any]) -> Answer:
        """Run the application; after a body that failed the connection ends."""
        made.setdefault(CAN_WAIT, True)
        made[READY] = perf_counter()
        answer: Answer = await run(partial(self._answer, what), made)
        if isinstance(made["wsgi.input"], Failed):
            answer.headers.append((b"connection", b"close"))
        return answer

    def _answer(self, what: object, made: dict[str, Any]) -> Answer:
        # One whose body was taken in has been waited for: it is not sent away for a neighbour's.
        before = None if AGAIN in made else self._holdoff.why(what)
        if before is not None:
            made[REFUSED_BEFORE] = before
        answer = Answer(self._application, made)
        if before is None and REFUSED in made:
            self._holdoff.remember(what, made[REFUSED])
        return answer

    async def _stream(self, scope: Scope, receive: Receive) -> object:
        """Return the body of a request that has a small one, or none; else a promise of it."""
        length = _length(scope)
        if length == 0:
            return BytesIO()
        if length is None or _is_late(scope):
            return Pending()
        return await self._read(receive, length)

    async def _with_late_body(
        self, run: Run, what: object, scope: Scope, receive: Receive, wanted: BodyWanted
    ) -> Answer:
        """Call the application again with the body it wants, if there is memory for that."""
        size = min(_length(scope) or wanted.most, wanted.most)
        try:
            with self._limits.late_bodies.held(wanted.whose, size):
                stream = await self._read(receive, wanted.most)
                return await self._call_again(run, what, scope, stream)
        except NoShare as refused:
            return await self._call_again(run, what, scope, Failed(refused))

    async def _call_again(self, run: Run, what: object, scope: Scope, stream: object) -> Answer:
        return await self._call(run, what, {**environ(scope, stream), AGAIN: True})

    async def _read(self, receive: Receive, most: int) -> object:
        try:
            return BytesIO(await bodies.read(receive, self._limits.body, most))
        except (BodyTooSlow, BodyCutShort) as error:
            return Failed(error)


async def _wait(run: Run, waiting: Waiting) -> None:
    """Wait until an answer is ready, or as long as asked; no thread is held between two looks."""
    clock = asyncio.get_running_loop().time
    until, pause = clock() + waiting.seconds, _FIRST_PAUSE
    while (left := until - clock()) > 0:
        await asyncio.sleep(min(pause, left))
        try:
            if await run(lambda _: waiting.ready(), None):
                return
        except Exception:  # noqa: BLE001  # the application answers what went wrong
            return
        pause = min(pause * _GROWS_BY, _LONGEST_PAUSE)


def _is_late(scope: Scope) -> bool:
    length = _length(scope)
    return length is None or length > SMALL_BODY


def _length(scope: Scope) -> int | None:
    """Return the declared length of the body, 0 for none; None where it is not known or awaited.

    A sender that expects `100 Continue` gets it at the first read (RFC 9110 section 10.1.1): the
    application may refuse the request before.
    """
    length = 0
    for name, value in scope["headers"]:
        if name in (b"transfer-encoding", b"expect"):
            return None
        if name == b"content-length" and value.isdigit():
            length = int(value)
    return length
