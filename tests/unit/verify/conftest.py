"""Timestamp authorities."""

import pytest

from tests.unit.verify import authorities
from tests.unit.verify.authorities import Authority, authority


@pytest.fixture(scope="session", params=authorities.KINDS)
def by(request: pytest.FixtureRequest) -> Authority:
    return authority(request.param)


@pytest.fixture(scope="session")
def p256() -> Authority:
    return authority()
