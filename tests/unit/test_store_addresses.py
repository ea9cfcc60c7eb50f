"""The stores' addresses as platforms give them: how they are read, and Redis over TLS.

Over TLS: who is believed, and why a connection failed.
"""

import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from sqlalchemy.engine import make_url

from app.lib.stores import place, reason
from app.queue import connect
from app.settings import SettingError, Settings
from tests.support.faults import LONG_ENOUGH, OwnValkey
from tests.support.secrets import MASTER_KEYS_SETTING
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.ports import own_port

NEEDED = {
    "DATABASE_URL": "postgresql://records.test/records",
    "MASTER_KEYS": MASTER_KEYS_SETTING,
    "BASE_URL": "https://records.test",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", "redis://default:hunter2/x@redis:6379/0"),
        ("REDIS_URL", "rediss://default:hunter2#x@redis"),
        ("REDIS_URL", "redis://default:hunter2?x@redis"),
        ("REDIS_URL", "redis://:hunter2\u2100@redis"),
        ("DATABASE_URL", "postgresql://me:x@hunter2@db/records"),
        ("DATABASE_URL", "postgresql://me:x@hunter2/y@db:5432/records"),
        ("DATABASE_ADMIN_URL", "postgresql://me:x@hunter2:y@db/records"),
        ("DATABASE_URL", "postgresql://me:x@hunter2:y@db,other/records"),
        ("REDIS_URL", "redis+sentinel://:hunter2/x@one,two/service/0"),
        ("REDIS_URL", "redis+sentinel://:hunter2@one,two:port/service/0"),
        ("REDIS_URL", "redis+sentinel://:hunter2@one,two/0/service"),
        ("REDIS_URL", "redis+sentinel://:hunter2@one,two"),
    ],
)
def test_a_password_that_is_not_encoded_is_refused_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} is wrong: ") as refusal:
        Settings.from_environ({**NEEDED, name: value})
    assert "hunter2" not in str(refusal.value)
    cause = refusal.value.__cause__
    assert cause is not None
    assert cause.__suppress_context__ or cause.__context__ is None, "a traceback would show it"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:p%40ss@db:5432/records",
        "postgresql://me@tenant:secret@db/records",
        "postgresql://me:pa/s?s@db/records?sslmode=require",
        "postgresql://me:secret@[::1]:5432/records",
        "postgresql://me:secret@db/records?application_name=a@b",
        "postgresql:///records?host=/run/postgresql",
        "postgresql://db:5432/records",
    ],
)
def test_an_address_of_a_database_is_read_as_sqlalchemy_reads_it(url: str) -> None:
    read = Settings.from_environ({**NEEDED, "DATABASE_URL": url}).database_url
    assert read == url.replace("://", "+psycopg://", 1)
    assert make_url(read).host in ("db", "::1", None)


@pytest.mark.parametrize(
    ("url", "hosts", "ports", "rest"),
    [
        ("postgresql://me:p%40ss@one:5433,two/records", "one,two", "5433,5432", {}),
        ("postgresql://one,two:5433/", "one,two", "5432,5433", {}),
        ("postgresql://one,two", "one,two", "5432,5432", {}),
        (
            "postgres://me@[::1]:5433,[2001:db8::2]/records?target_session_attrs=read-write&sslmode=require",
            "::1,2001:db8::2",
            "5433,5432",
            {"target_session_attrs": "read-write", "sslmode": "require"},
        ),
    ],
)
def test_a_list_of_hosts_is_what_libpq_gets(
    url: str, hosts: str, ports: str, rest: dict[str, str]
) -> None:
    read = make_url(Settings.from_environ({**NEEDED, "DATABASE_URL": url}).database_url)
    (_, given) = read.get_dialect()().create_connect_args(read)
    assert (given.pop("host"), given.pop("port")) == (hosts, ports)
    assert given.pop("password", None) in ("p@ss", None)
    assert given.pop("user", None) in ("me", None)
    assert given.pop("dbname", "records") == "records"
    assert given == rest
    assert "***" in repr(read) or read.password is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://db/records?target_session_attrs=standby", "primary or read-write"),
        ("postgresql://one,two/records?target_session_attrs=any", "primary or read-write"),
        ("postgresql://one,two/records?host=three", "not by both"),
    ],
)
def test_a_list_that_would_lead_to_a_standby_is_refused(url: str, why: str) -> None:
    with pytest.raises(SettingError, match=f"^DATABASE_URL is wrong: .*{why}"):
        Settings.from_environ({**NEEDED, "DATABASE_URL": url})


def test_sentinels_get_their_own_password_and_redis_its_own_and_both_one_authority(
    tmp_path: Path,
) -> None:
    authority = ServerAuthority(tmp_path)
    url = "rediss+sentinel://me:p%40ss@one:26380,[::1]/main/3?sentinel_password=theirs"
    read = Settings.from_environ({**NEEDED, "REDIS_URL": url, "REDIS_CA_FILE": authority.pem})
    pool: Any = connect(read.redis_url or "", LONG_ENOUGH).connection_pool
    to_redis = pool.connection_kwargs
    assert (to_redis["username"], to_redis["password"], to_redis["db"]) == ("me", "p@ss", 3)
    assert pool.service_name == "main"
    asked = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("one", 26380), ("::1", 26379)]
    for each in (to_redis, *asked):
        assert each["ssl_ca_data"] == authority.pem.strip()
        assert each["socket_timeout"] == LONG_ENOUGH
    assert {(each.get("username"), each["password"]) for each in asked} == {(None, "theirs")}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+sentinel://me:secret@one:26379,two/main/0", "redis+sentinel://one:26379,two"),
        ("rediss://:secret@[::1]:6379/0?ssl_certfile=x", "rediss://[::1]:6379"),
        ("redis://default:secret/x@redis:6379/0", "an address that cannot be read"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert place(url) == shown


def relay(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until a side closes; in one thread, as OpenSSL's connections want it."""
    with selectors.DefaultSelector() as ready:
        ready.register(one, selectors.EVENT_READ, (one, other))
        ready.register(other, selectors.EVENT_READ, (other, one))
        while events := ready.select(LONG_ENOUGH):
            for key, _ in events:
                source, target = key.data
                piece = source.recv(65_536)
                if not piece:
                    return
                target.sendall(piece)


@contextmanager
def encrypted(valkey: OwnValkey, context: ssl.SSLContext) -> Iterator[str]:
    """Pass one connection on to a Valkey, with TLS before it; give the address."""
    url = urlsplit(valkey.url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LONG_ENOUGH)

        def serve() -> None:
            accepted, _ = listener.accept()
            accepted.settimeout(LONG_ENOUGH)
            with accepted, suppress(OSError):
                client = context.wrap_socket(accepted, server_side=True)
                with client, socket.create_connection(("127.0.0.1", url.port or 0)) as server:
                    server.settimeout(LONG_ENOUGH)
                    relay(client, server)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"rediss://:{url.password}@127.0.0.1:{listener.getsockname()[1]}/0"
        thread.join(LONG_ENOUGH)


def ping(url: str, **given: str) -> tuple[bool, str | None]:
    """Ask with these settings; return whether it answered, and else why not."""
    settings = Settings.from_environ({**NEEDED, "REDIS_URL": url, **given})
    client = connect(settings.redis_url or "", LONG_ENOUGH)
    try:
        return bool(client.ping()), None
    except redis.RedisError as error:
        return False, reason(error)
    finally:
        client.close()


def test_a_certificate_of_our_own_goes_with_a_named_authority(tmp_path: Path) -> None:
    authority = ServerAuthority(tmp_path)
    own = "ssl_certfile=/own.pem&ssl_keyfile=/own.key&ssl_ciphers=HIGH"
    url = f"rediss://redis.test/0?{own}&ssl_cert_reqs=none&ssl_ca_certs=/other.pem"
    read = Settings.from_environ({**NEEDED, "REDIS_URL": url, "REDIS_CA_FILE": authority.pem})
    given = connect(read.redis_url or "", LONG_ENOUGH).connection_pool.connection_kwargs
    said = {name: value for name, value in given.items() if name.startswith("ssl_")}
    assert said == {
        "ssl_certfile": "/own.pem",
        "ssl_keyfile": "/own.key",
        "ssl_ciphers": "HIGH",
        "ssl_ca_data": authority.pem.strip(),
    }


def test_a_certificate_is_believed_by_a_named_authority_or_where_none_is_verified(
    own_valkey: OwnValkey, tmp_path: Path
) -> None:
    authority = ServerAuthority(tmp_path)
    for named in (authority.ca_file, authority.pem):
        with encrypted(own_valkey, authority.server("127.0.0.1")) as url:
            assert ping(url, REDIS_CA_FILE=named) == (True, None)
    with encrypted(own_valkey, authority.server("elsewhere.test", trusted=False)) as url:
        assert ping(url, REDIS_TLS_VERIFY="none") == (True, None)
    with encrypted(own_valkey, authority.server("127.0.0.1", trusted=False)) as url:
        answered, trouble = ping(url)
    assert not answered
    assert trouble is not None
    assert trouble.startswith("its certificate was refused: self")
    closed = f"rediss://127.0.0.1:{own_port()}/0"
    assert ping(closed) == (False, "the connection was refused")
    with pytest.raises(SettingError, match="REDIS_TLS_VERIFY=none would ignore REDIS_CA_FILE"):
        ping(closed, REDIS_CA_FILE=authority.ca_file, REDIS_TLS_VERIFY="none")
