"""The client and the authority of its tests."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.lib.outbound import connection as connections
from app.lib.outbound.client import Outbound
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.receivers import LOOPBACK
from tests.unit.delivery.outbound.posting import HERE, Names


@pytest.fixture
def outbound() -> Iterator[Outbound]:
    client = Outbound(LOOPBACK)
    yield client
    client.close()


@pytest.fixture
def without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a connection be used again at once, as after the first seconds of a receiver."""
    monkeypatch.setattr(connections, "REST_SECONDS", 0.0)


@pytest.fixture
def authority(tmp_path: Path) -> ServerAuthority:
    return ServerAuthority(tmp_path)


@pytest.fixture
def trusting(authority: ServerAuthority) -> Iterator[Outbound]:
    """Trust the test's authority; every name leads to this machine."""
    client = Outbound(LOOPBACK, authorities=authority.pem, lookup=Names([HERE]))
    yield client
    client.close()


@pytest.fixture(params=["http", "https"])
def tls(request: pytest.FixtureRequest, authority: ServerAuthority) -> ssl.SSLContext | None:
    """Serve once without TLS and once with it."""
    return authority.server("127.0.0.1") if request.param == "https" else None
