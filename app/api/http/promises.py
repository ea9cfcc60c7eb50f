"""Promised answers: a hot view called on the event loop, which waits for its group there.

Nothing may block on the loop. So a view that is called there promises its answer; whatever else it
would answer is dropped, and a thread calls it again, as it calls all other views.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

from flask import Flask, Response, request

from app.api.http.answers import MEDIA_TYPE
from app.core.idempotency import Answered
from app.lib.gateway.gateway import ON_LOOP, PROMISE, Environ

# What became of a promise that was not kept: an `Answered`, or the error.
_OUTCOME = "record-service.outcome"

_View = TypeVar("_View", bound=Callable[..., Any])


class Left(Exception):
    """A thread is to answer this request."""


class _Promised(Response):
    """An answer whose headers are known; status and body follow."""

    def __call__(self, _: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        # What werkzeug makes of a body that is there costs a tenth of the whole call.
        start(self.status, list(self.headers))
        return ()


class Promise:
    """Awaits an answer; keeps the promise if it is new, else tells the thread what it has found."""

    def __init__(self, environ: Environ, join: Callable[[], Awaitable[Answered]]) -> None:
        self._environ = environ
        self._join = join
        self.record: Callable[[int], None] = lambda status: None

    async def __call__(self) -> tuple[int, bytes] | None:
        """Return status and body, once they are there."""
        try:
            found = await self._join()
        except Exception as error:  # noqa: BLE001  # the view raises it in a thread
            self._environ[_OUTCOME] = error
            return None
        if found.replayed:
            self._environ[_OUTCOME] = found
            return None
        self.record(found.status)
        return found.status, found.body


def may_promise(longest: int) -> Callable[[_View], _View]:
    """Have POSTs of a view, whose path has no parameter, called on the event loop.

    Those whose body has at most `longest` bytes: what is done with them must take a millisecond or
    two.
    """

    def mark(view: _View) -> _View:
        view.promises_up_to = longest  # type: ignore[attr-defined]  # read back by paths
        return view

    return mark


def paths(app: Flask) -> dict[bytes, int]:
    """Return the paths of the views that may promise their answers, each with its longest body."""
    views = ((rule.rule, app.view_functions[rule.endpoint]) for rule in app.url_map.iter_rules())
    found = ((path, getattr(view, "promises_up_to", 0)) for path, view in views)
    return {path.encode(): longest for path, longest in found if longest}


def on_loop() -> bool:
    """Whether the event loop makes this call."""
    return ON_LOOP in request.environ


def leave() -> None:
    """Leave the event loop, if it makes this call: what follows may block, or counts for good."""
    if on_loop():
        raise Left


def drop() -> Response:
    """Return an answer that nobody gets: a thread calls the view again."""
    request.environ.pop(PROMISE, None)
    return Response()


def promise(join: Callable[[], Awaitable[Answered]]) -> Response:
    """Promise what `join()` will have found; the headers are those of the answer returned."""
    request.environ[PROMISE] = Promise(request.environ, join)
    return _Promised(content_type=MEDIA_TYPE)


def promised() -> Promise | None:
    """Return the promise that this call has made, if any."""
    return cast(Promise | None, request.environ.get(PROMISE))


def outcome() -> Answered | None:
    """Return what a promise has found that was not kept, if there is one; raises its error."""
    # Taken out: an error that is raised holds its frames, and they the environ.
    found = request.environ.pop(_OUTCOME, None)
    if isinstance(found, Exception):
        raise found
    return cast(Answered | None, found)
