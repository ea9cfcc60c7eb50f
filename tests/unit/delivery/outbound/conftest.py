"""The client and the authority of its tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.lib.outbound import pool
from app.lib.outbound.client import Outbound
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.receivers import LOOPBACK


@pytest.fixture
def outbound() -> Iterator[Outbound]:
    client = Outbound(LOOPBACK)
    yield client
    client.close()


@pytest.fixture
def without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a connection be used again at once, as after the first seconds of a receiver."""
    monkeypatch.setattr(pool, "REST_SECONDS", 0.0)


@pytest.fixture
def authority(tmp_path: Path) -> ServerAuthority:
    return ServerAuthority(tmp_path)
