"""The ASGI application that runs a WSGI application in threads."""

import sys
from asyncio import get_running_loop, timeout
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeAlias

from app.lib.fair_shares import NoShare, Shares
from app.lib.gateway import answers, requests
from app.lib.gateway.answers import Answer, Application, ReaderTooSlow, Send
from app.lib.gateway.connections import Connections
from app.lib.gateway.requests import (
    BodyCutShort,
    Client,
    ClientLeft,
    Failed,
    Pace,
    Receive,
    environ,
)
from app.lib.gateway.threads import Threads

# How long a probe of an urgent path waits for its answer: load balancers wait 5 s and more.
PROBE_SECONDS = 2.0
# Since when, by `time.perf_counter`, all that a call needs was there but a thread to make it.
READY = "gateway.ready"
# A list for a request that may wait: the application puts a `Wait` there beside its answer, which
# is dropped then. A request that has waited has WAITED.
WAIT, WAITED = "gateway.wait", "gateway.waited"
# The application marks here what it refused for want of room. That answer is held back for so long:
# who heeds no Retry-After would keep the process busy with refusals.
REFUSED, REFUSED_SECONDS = "gateway.refused", 1.0
# Between two looks whether an answer is ready: soon at first.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWS_BY = 0.05, 0.5, 1.5

# Marks a call that the event loop makes. The application puts a `Promise` there, and the headers of
# its answer; it is called again, in a thread, if there is none, or if it is not kept.
ON_LOOP, PROMISE = "gateway.on_loop", "gateway.promise"
# One caller's at once; those beyond take turns with all others, for threads.
_MOST_PROMISES = 32

Environ: TypeAlias = dict[str, Any]
Scope: TypeAlias = Mapping[str, Any]
Promise: TypeAlias = Callable[[], Awaitable[tuple[int, bytes] | None]]
"""Returns status and body, once they are there; None for an answer that a thread is to make."""


@dataclass(frozen=True)
class Wait:
    """Have a request made again once `ready()`, or after so many seconds.

    `over` is called when the wait has ended, in whatever way.
    """

    ready: Callable[[], bool]
    seconds: float
    over: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Limits:
    """How slow senders and readers may be, and how many bytes of long bodies are held at once."""

    body: Pace
    answer: Pace
    long_bodies: Shares


def _peer(made: Environ) -> object:
    return made["REMOTE_ADDR"]


class Gateway:
    """Serves a WSGI application by ASGI.

    `caller` names who sent a request, from its environ: callers take turns at the threads, and none
    has more than half of them. `most` says how many bytes a long body may have; 0 for a request
    that is refused without it. `urgent` are paths that have a thread each, where `address` takes
    turns; what is not answered within `PROBE_SECONDS` there is answered by the path's own
    application, on the event loop. POSTs of `promising` paths are made on the event loop, for a
    `Promise`, if their body has at most so many bytes: it must not be kept long. `connections`
    hears of each request, and `on_slow_reader` of every answer that was given up.
    """

    def __init__(
        self,
        application: Application,
        threads: int,
        limits: Limits,
        *,
        caller: Callable[[Environ], object] = _peer,
        address: Callable[[Environ], object] = _peer,
        most: Callable[[Environ], int] = lambda made: sys.maxsize,
        urgent: Mapping[str, Application] = MappingProxyType({}),
        promising: Mapping[bytes, int] = MappingProxyType({}),
        connections: Connections | None = None,
        on_slow_reader: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        self._application = application
        self._limits = limits
        self._connections = connections or Connections(sys.maxsize, sys.maxsize, lambda peer: None)
        self._on_slow_reader = on_slow_reader
        self._caller = caller
        self._address = address
        self._most = most
        self._promising = promising
        self._promised = Counter[object]()
        self._threads = Threads(threads, max(threads // 2, 1), "request")
        self._urgent = {path: (Threads(1, 1, path), late) for path, late in urgent.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI HTTP specification 2.3)."""
        client = Client(receive)
        peer = scope.get("client") or ("", "")
        self._connections.begin(peer, client)
        try:
            if scope["path"] in self._urgent:
                await self._answer_probe(scope, client, send)
            else:
                await self._answer_request(scope, client, send)
        except ClientLeft:
            # Nobody is there to be answered.
            pass
        except ReaderTooSlow:
            self._connections.give_up(peer)
        finally:
            self._connections.end(peer)
            client.close()

    async def _answer_probe(self, scope: Scope, client: Client, send: Send) -> None:
        """Answer a request for an urgent path in time; its body, if it has one, is not read."""
        threads, late = self._urgent[scope["path"]]
        client.body_is_read = requests.length(scope) == 0
        made = {**environ(scope, BytesIO()), READY: perf_counter()}
        call = partial(Answer, self._application, made)
        try:
            async with timeout(PROBE_SECONDS):
                answer = await threads.run(self._address(made), call, client.leaving)
        except TimeoutError:
            answer = Answer(late, made)
        await answers.send(answer, send, self._limits.answer)

    async def _answer_request(self, scope: Scope, client: Client, send: Send) -> None:
        made = environ(scope, BytesIO())
        body: BytesIO | Failed | None = None
        longest = self._promising.get(scope["raw_path"], 0) if scope["method"] == "POST" else 0
        if longest and 0 < (requests.length(scope) or 0) <= longest:
            body = await requests.read(client, self._limits.body, longest)
            if isinstance(body, BytesIO):
                made["wsgi.input"] = body
                promised = await self._promise(made)
                if promised is not None:
                    with client.awaited():
                        await answers.send(promised, send, self._limits.answer)
                    return
        with ExitStack() as held:
            made["wsgi.input"] = body or await self._body(scope, made, client, held)
            made[WAIT] = waits = list[Wait]()
            answer = await self._call(client, made)
        for wait in waits:
            await self._wait(client, made, answer, wait)
            again = {**environ(scope, BytesIO()), WAITED: True}
            answer = await self._call(client, again)
        if REFUSED in made:
            await client.stays(REFUSED_SECONDS)
        caller = self._caller(made)
        more = partial(self._threads.run, caller, answer.pull, client.leaving)
        try:
            with client.awaited():
                await answers.send(answer, send, self._limits.answer, more)
        except ReaderTooSlow:
            self._on_slow_reader(answer)
            raise
        finally:
            if not answer.closed:
                await self._threads.run(caller, answer.close)

    async def _promise(self, made: Environ) -> Answer | None:
        """Make a call on the event loop; return the answer it promised, None for a thread's."""
        caller = self._caller(made)
        if self._promised[caller] >= _MOST_PROMISES:
            return None
        made[READY] = perf_counter()
        made[ON_LOOP] = True
        answer = Answer(self._application, made)
        answer.close()
        del made[ON_LOOP]
        made["wsgi.input"].seek(0)
        promise: Promise | None = made.pop(PROMISE, None)
        if promise is None:
            return None
        self._promised[caller] += 1
        try:
            kept = await promise()
        finally:
            self._promised[caller] -= 1
            if not self._promised[caller]:
                del self._promised[caller]
        if kept is None:
            return None
        answer.settle(*kept)
        return answer

    async def _call(self, client: Client, made: Environ) -> Answer:
        """Run the application; after a body that failed the connection ends."""
        made.setdefault(READY, perf_counter())
        call = partial(Answer, self._application, made)
        answer = await self._threads.run(self._caller(made), call, client.leaving)
        if isinstance(made["wsgi.input"], Failed):
            answer.headers.append((b"connection", b"close"))
        return answer

    async def _body(
        self, scope: Scope, made: Environ, client: Client, held: ExitStack
    ) -> BytesIO | Failed:
        """Read the body; a long one as far as it may be, if there is memory, which is `held`."""
        length = requests.length(scope)
        if length == 0:
            client.body_is_read = True
            return BytesIO()
        most = requests.SMALL
        if length is None or length > most:
            ask = partial(self._most, made)
            most = await self._threads.run(self._caller(made), ask, client.leaving)
            if not most or (length or 0) > most:
                # Not read: the application refuses the request before it looks for its body.
                return Failed(BodyCutShort())
            try:
                # Now that the application has looked, it may know better who sent it.
                memory = self._limits.long_bodies.held(self._caller(made), length or most)
                held.enter_context(memory)
            except NoShare as refused:
                return Failed(refused)
        return await requests.read(client, self._limits.body, most)

    async def _wait(self, client: Client, made: Environ, answer: Answer, wait: Wait) -> None:
        """Wait until an answer is ready, or as long as asked; no thread is held between looks."""
        clock, caller = get_running_loop().time, self._caller(made)
        until, pause = clock() + wait.seconds, _FIRST_PAUSE
        try:
            if not answer.closed:
                await self._threads.run(caller, answer.close)
            while (left := until - clock()) > 0:
                await client.stays(min(pause, left))
                try:
                    if await self._threads.run(caller, wait.ready, client.leaving):
                        return
                except ClientLeft:
                    raise
                except Exception:  # noqa: BLE001  # the application answers what went wrong
                    return
                pause = min(pause * _GROWS_BY, _LONGEST_PAUSE)
        finally:
            wait.over()
