"""The ASGI application that runs a WSGI application in threads."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeAlias

from app.lib.fair_shares import NoShare, Shares
from app.lib.gateway import answers, bodies
from app.lib.gateway.answers import Answer, Application, ReaderTooSlow, Send
from app.lib.gateway.bodies import BodyCutShort, BodyTooSlow, Pace, Receive
from app.lib.gateway.client import Client, ClientLeft
from app.lib.gateway.connections import Connections
from app.lib.gateway.environ import environ
from app.lib.gateway.holdoff import Holdoff
from app.lib.gateway.streams import BodyWanted, Failed, Pending, Waiting
from app.lib.gateway.threads import Threads
from app.lib.gateway.turns import Turns, never

# A body up to here is read before the application asks for it: that takes no thread, little memory.
SMALL_BODY = 64 * 1024
# How long a probe of an urgent path waits for its answer: load balancers wait 5 s and more.
PROBE_SECONDS = 2.0
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


def _peer(scope: Scope) -> object:
    return (scope.get("client") or ("",))[0]


class Gateway:
    """Serves a WSGI application by ASGI.

    `caller` names who sent a request, as far as its scope tells: callers take turns at the threads,
    and none has more than half of them. `urgent` are paths that have a thread each, where `address`
    takes turns; what is not answered within `PROBE_SECONDS` there is answered by the path's own
    application, on the event loop. `connections` hears of each request, and `on_slow_reader` of
    every answer that was given up.
    """

    def __init__(
        self,
        application: Application,
        threads: int,
        limits: Limits,
        *,
        caller: Callable[[Scope], object] = _peer,
        address: Callable[[Scope], object] = _peer,
        urgent: Mapping[str, Application] = MappingProxyType({}),
        connections: Connections | None = None,
        on_slow_reader: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        self._application = application
        self._limits = limits
        self._connections = connections or Connections(sys.maxsize, sys.maxsize, lambda peer: None)
        self._on_slow_reader = on_slow_reader
        self._caller = caller
        self._address = address
        self._threads = Threads(threads, "request")
        self._turns = Turns(threads, max(threads // 2, 1))
        # A caller's large answers advance one at a time: many at once would wait for Python's one
        # lock (the GIL) in many threads, and all other callers behind them.
        self._pieces = Turns(max(threads // 4, 2), 1)
        self._holdoff = Holdoff(limits.holdoff)
        self._urgent = urgent
        self._urgent_threads = Threads(len(urgent), "urgent")
        self._urgent_turns = {path: Turns(1, 1) for path in urgent}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI HTTP specification 2.3)."""
        client = Client(receive)
        peer = scope.get("client") or ("", "")
        self._connections.begin(peer, client)
        try:
            if scope["path"] in self._urgent:
                await self._answer_probe(scope, client, send)
            else:
                await self._answer_request(scope, client, receive, send)
        except ClientLeft:
            # Nobody is there to be answered.
            pass
        finally:
            self._connections.end(peer)
            client.close()

    async def _answer_probe(self, scope: Scope, client: Client, send: Send) -> None:
        """Answer a request for an urgent path in time; its body, if it has one, is not read."""
        path = scope["path"]
        turns, caller = self._urgent_turns[path], self._address(scope)
        client.body_is_read = _length(scope) == 0
        made = {**environ(scope, BytesIO()), CAN_WAIT: False, READY: perf_counter()}
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                answer = await _run(
                    self._urgent_threads, turns, caller, client.leaving, self._made_at_once, made
                )
        except TimeoutError:
            answer = Answer(self._urgent[path], made)
        await answers.send(answer, send, _nothing, self._limits.answer, ("", ""))

    def _made_at_once(self, made: dict[str, Any]) -> Answer:
        return Answer(self._application, made)

    async def _answer_request(
        self, scope: Scope, client: Client, receive: Receive, send: Send
    ) -> None:
        caller = self._caller(scope)
        what = (caller, scope["method"], scope["path"], _is_late(scope))
        run = partial(_run, self._threads, self._turns, caller, client.leaving)
        stream = await self._stream(scope, client, receive)
        if self._holdoff.why(what) is not None:
            await client.stays(self._holdoff.seconds)
        try:
            answer = await self._call(run, what, environ(scope, stream))
        except BodyWanted as wanted:
            answer = await self._with_late_body(run, what, scope, client, receive, wanted)
        except Waiting as waiting:
            try:
                await _wait(run, waiting, client)
            finally:
                waiting.over()
            late = {**environ(scope, stream), AGAIN: True, CAN_WAIT: False}
            answer = await self._call(run, what, late)
        try:
            with client.awaited():
                await answers.send(
                    answer,
                    send,
                    lambda: self._pull(run, caller, client, answer),
                    self._limits.answer,
                    scope.get("client") or ("", ""),
                )
        except ReaderTooSlow:
            self._on_slow_reader(answer)
        finally:
            if not answer.closed:
                await _run(self._threads, self._turns, caller, never, answer.close, None)

    async def _pull(self, run: Run, caller: object, client: Client, answer: Answer) -> None:
        await self._pieces.enter(caller, client.leaving)
        try:
            await run(answer.pull, None)
        finally:
            self._pieces.give_back(caller)

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

    async def _stream(self, scope: Scope, client: Client, receive: Receive) -> object:
        """Return the body of a request that has a small one, or none; else a promise of it."""
        length = _length(scope)
        if length == 0:
            client.body_is_read = True
            return BytesIO()
        if length is None or _is_late(scope):
            return Pending()
        return await self._read(client, receive, length)

    async def _with_late_body(
        self,
        run: Run,
        what: object,
        scope: Scope,
        client: Client,
        receive: Receive,
        wanted: BodyWanted,
    ) -> Answer:
        """Call the application again with the body it wants, if there is memory for that."""
        size = min(_length(scope) or wanted.most, wanted.most)
        try:
            with self._limits.late_bodies.held(wanted.whose, size):
                stream = await self._read(client, receive, wanted.most)
                return await self._call_again(run, what, scope, stream)
        except NoShare as refused:
            return await self._call_again(run, what, scope, Failed(refused))

    async def _call_again(self, run: Run, what: object, scope: Scope, stream: object) -> Answer:
        return await self._call(run, what, {**environ(scope, stream), AGAIN: True})

    async def _read(self, client: Client, receive: Receive, most: int) -> object:
        try:
            with client.awaited():
                body = await bodies.read(receive, self._limits.body, most)
        except (BodyTooSlow, BodyCutShort) as error:
            return Failed(error)
        client.body_is_read = len(body) <= most
        return BytesIO(body)


async def _run(
    threads: Threads,
    turns: Turns,
    caller: object,
    leaving: "Callable[[], asyncio.Future[Any]]",
    call: Callable[[Any], Any],
    argument: object,
) -> Any:
    """Have a thread make a call when it is the caller's turn, which lasts until the thread ends."""
    await turns.enter(caller, leaving)
    made = threads.run(call, argument)
    made.add_done_callback(lambda _: turns.give_back(caller))
    outcome = asyncio.shield(made)
    # An error that it raises holds this frame, which must not hold the error: no cycle.
    del made
    try:
        return await outcome
    finally:
        del outcome


async def _nothing() -> None:
    """Stand for the further pieces of an answer that has none."""


async def _wait(run: Run, waiting: Waiting, client: Client) -> None:
    """Wait until an answer is ready, or as long as asked; no thread is held between two looks."""
    clock = asyncio.get_running_loop().time
    until, pause = clock() + waiting.seconds, _FIRST_PAUSE
    while (left := until - clock()) > 0:
        await client.stays(min(pause, left))
        try:
            if await run(lambda _: waiting.ready(), None):
                return
        except ClientLeft:
            raise
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
