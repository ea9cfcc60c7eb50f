"""Why Redis does not answer, in words of ours: a driver's text may quote an address."""

import socket
import ssl

import redis
from redis.sentinel import MasterNotFoundError

_BY_KIND: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "its host name is not known"),
    (ConnectionRefusedError, "the connection was refused"),
    (redis.AuthenticationError, "the password was refused"),
    (redis.MaxConnectionsError, "it has no connection left"),
    (redis.BusyLoadingError, "it is loading its data"),
    (redis.ReadOnlyError, "it is a replica that only reads"),
    (MasterNotFoundError, "no Sentinel knows a primary that is up"),
    (redis.OutOfMemoryError, "its memory is full"),
    (TimeoutError, "it did not answer in time"),
    (redis.TimeoutError, "it did not answer in time"),
    (ConnectionResetError, "the connection was reset"),
    (BrokenPipeError, "the connection was reset"),
)
# redis-py's own text, of an error that has no cause.
_CLOSED = "Connection closed by server."


def reason(error: BaseException) -> str:
    """Say why Redis failed, by the first known cause of an error; else the error's class."""
    known = [error]
    while (before := known[-1].__cause__ or known[-1].__context__) is not None:
        known.append(before)
    for each in reversed(known):
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"its certificate was refused: {each.verify_message}"
        if isinstance(each, ssl.SSLError):
            return "it does not speak TLS as asked: compare redis:// and rediss://"
        for kind, words in _BY_KIND:
            if isinstance(each, kind):
                return words
    return "it closed the connection" if str(error) == _CLOSED else type(error).__name__
