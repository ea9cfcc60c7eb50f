"""Addresses of the stores, PostgreSQL as one host or a list, Redis alone or behind Sentinels.

And why Redis does not answer, in words of ours. Neither quotes anything of an address, which holds
a password.
"""

import re
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis as driver
from psycopg import pq
from redis.connection import parse_url
from redis.sentinel import MasterNotFoundError

_HOST = r"(?:\[[^]]*\]|[^][:/,@]*)(?::[0-9]{1,5})?"
_HOSTS = re.compile(f"{_HOST}(?:,{_HOST})*")
# As SQLAlchemy reads them: a password ends at its first @, and what follows names the server.
_CREDENTIALS = re.compile(r"[^:/]*(:[^@]*)?@")
_POSTGRES_FORM = "use postgresql://user:password@host:port/database"
_REDIS_FORM = (
    "use redis://:password@host:port/0, or rediss:// for TLS; with Sentinel"
    " redis+sentinel://:password@sentinel:26379,sentinel:26379/service/0"
)
# A session that must write; libpq's other words are for sessions that read.
_OF_A_PRIMARY = ("primary", "read-write")


def postgres(text: str, *, writes: bool = True) -> str:
    """Return the address of a PostgreSQL as SQLAlchemy takes it. Raises `ValueError`.

    Of a list of hosts (libpq's `h1:5432,h2:5432`) each connection goes to the first that is a
    primary; without `writes` to any that `target_session_attrs` admits.
    """
    scheme, separator, rest = text.partition("://")
    found = _CREDENTIALS.match(rest)
    credentials = found[0] if found else ""
    place, _, query = rest[len(credentials) :].partition("?")
    hosts, slash, database = place.partition("/")
    if not separator or scheme.split("+")[0] not in ("postgres", "postgresql"):
        raise ValueError(_POSTGRES_FORM)
    if not _HOSTS.fullmatch(hosts) or "@" in database:
        # The end of the password would be resolved as a host name, and shown in each error.
        raise ValueError("write an @ in the password as %40" if "@" in place else _POSTGRES_FORM)
    options = parse_qsl(query, keep_blank_values=True)
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    for name, value in options:
        if name not in known:
            raise ValueError(
                f"remove {name!r} behind the ?: PostgreSQL's client has no such option"
            )
        if writes and name == "target_session_attrs" and value not in _OF_A_PRIMARY:
            raise ValueError("use target_session_attrs=primary or read-write: the service writes")
    if "," not in hosts:
        return f"postgresql+psycopg://{rest}"
    if {"host", "port"} & dict(options).keys():
        raise ValueError("name the hosts before the /, or by host= behind the ?, not by both")
    # SQLAlchemy has a notation of its own for a list.
    pairs = [_host_and_port(each) for each in hosts.split(",")]
    listed = [("host", ",".join(host for host, _ in pairs))]
    listed += [("port", ",".join(str(port or 5432) for _, port in pairs))]
    return f"postgresql+psycopg://{credentials}{slash}{database}?{urlencode(listed + options)}"


def redis(text: str) -> str:
    """Return the address of a Redis, after checking its form. Raises `ValueError`."""
    try:
        parts = urlsplit(text)
        if parts.scheme.endswith("+sentinel"):
            Sentinels.parse(text)
            return text
        # Reading the port refuses one that is no number.
        known = parts.scheme in ("redis", "rediss") and parts.hostname and (parts.port or 6379)
    except ValueError:
        # With a / ? or # in the password, the error's text quotes part of it as a port.
        raise ValueError(_REDIS_FORM) from None
    if not known or not re.fullmatch(r"/?|/[0-9]{1,5}", parts.path):
        raise ValueError(_REDIS_FORM)
    return text


def place(url: str) -> str:
    """Return scheme, hosts and ports of a URL: user, password, path and query may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that cannot be read"
    hosts = parts.netloc.rpartition("@")[2]
    if not _HOSTS.fullmatch(hosts):
        return "an address that cannot be read"
    return f"{parts.scheme}://{hosts}"


@dataclass(frozen=True)
class Sentinels:
    """A Redis that Sentinels name: their hosts, the service's name, redis-py's options for each.

    `redis+sentinel://user:password@s1:26379,s2:26379/service/0`, as Kombu and limits write it, or
    `rediss+sentinel://` for TLS to both. User and password are Redis's; those of the Sentinels are
    `?sentinel_username=` and `sentinel_password=`.
    """

    hosts: tuple[tuple[str, int], ...]
    service: str
    redis_options: dict[str, Any]
    sentinel_options: dict[str, Any]

    @classmethod
    def parse(cls, url: str) -> "Sentinels | None":
        """Read a URL; None for one without Sentinels. Raises `ValueError`."""
        parts = urlsplit(url)
        if parts.scheme not in ("redis+sentinel", "rediss+sentinel"):
            return None
        credentials, at, hosts = parts.netloc.rpartition("@")
        path = re.fullmatch(r"/([A-Za-z0-9._-]+)(?:/([0-9]{1,5}))?/?", parts.path)
        if not path or not _HOSTS.fullmatch(hosts):
            raise ValueError(_REDIS_FORM)
        pairs = tuple(_host_and_port(each) for each in hosts.split(","))
        if not all(host for host, _ in pairs):
            raise ValueError(_REDIS_FORM)
        query = parse_qsl(parts.query, keep_blank_values=True)
        scheme = parts.scheme.partition("+")[0]
        own = urlencode([each for each in query if not each[0].startswith("sentinel_")])
        url = f"{scheme}://{credentials}{at}of/{path[2] or 0}?{own}"
        redis_options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
        for needless in ("host", "connection_class"):
            redis_options.pop(needless, None)
        tls = {name: value for name, value in redis_options.items() if name.startswith("ssl_")}
        if scheme == "rediss":
            tls["ssl"] = redis_options["ssl"] = True
        theirs = {
            name.removeprefix("sentinel_"): value
            for name, value in query
            if name in ("sentinel_username", "sentinel_password")
        }
        places = tuple((host, port or 26379) for host, port in pairs)
        return cls(places, path[1], redis_options, {**tls, **theirs})


def _host_and_port(text: str) -> tuple[str, int | None]:
    """Split one host of a list, whose form is known; an IPv6 address loses its brackets."""
    found = re.fullmatch(r"\[?(.*?)\]?(?::([0-9]{1,5}))?", text)
    assert found is not None  # noqa: S101  # it matches any line
    return unquote(found[1]), int(found[2]) if found[2] else None


_BY_KIND: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "its host name is not known"),
    (ConnectionRefusedError, "the connection was refused"),
    (driver.AuthenticationError, "the password was refused"),
    (driver.MaxConnectionsError, "it has no connection left"),
    (driver.BusyLoadingError, "it is loading its data"),
    (driver.ReadOnlyError, "it is a replica that only reads"),
    (MasterNotFoundError, "no Sentinel knows a primary that is up"),
    (driver.OutOfMemoryError, "its memory is full"),
    (TimeoutError, "it did not answer in time"),
    (driver.TimeoutError, "it did not answer in time"),
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
