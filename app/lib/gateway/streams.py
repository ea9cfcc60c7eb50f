"""Streams for `wsgi.input` while a body is not there yet, or cannot be had."""

from collections.abc import Callable
from dataclasses import dataclass

# Most bytes for an application that names no size.
_MOST = 1024 * 1024


class BodyWanted(BaseException):
    """The application wants a body that was not read yet: read it and call the application again.

    `most` is how many bytes are of use, `whose` is the owner of the memory. It is no `Exception`:
    no error handler of the application may answer it.
    """

    def __init__(self, most: int, whose: object) -> None:
        super().__init__(f"a body of at most {most} bytes is wanted")
        self.most = most
        self.whose = whose


class Waiting(BaseException):
    """The application has no answer yet: call it again once `ready()`, or after so many seconds.

    `over` is called when the wait has ended, in whatever way. No `Exception`, as above.
    """

    def __init__(
        self, ready: Callable[[], bool], seconds: float, over: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(f"nothing to answer for at most {seconds} s")
        self.ready = ready
        self.seconds = seconds
        self.over = over


class Pending:
    """A body that has not been read."""

    def read(self, size: int = -1) -> bytes:
        """Raise `BodyWanted`: no thread waits for a sender."""
        raise BodyWanted(_MOST, None)


@dataclass(frozen=True)
class Failed:
    """A body that could not be had."""

    error: Exception

    def __post_init__(self) -> None:
        """Forget where it failed: the frames hold the connection, and raising it makes a cycle.

        The server closes a connection only once its body is no longer referenced: it would stay
        open until a garbage collection.
        """
        self.error.__traceback__ = self.error.__context__ = None

    def read(self, size: int = -1) -> bytes:
        """Raise what went wrong."""
        raise self.error
