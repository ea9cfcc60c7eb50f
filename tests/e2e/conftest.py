"""What the end-to-end tests share: a whole service to do harm to."""

from collections.abc import Iterator

import pytest

from tests.e2e.harness.misfortune import House, house
from tests.e2e.harness.ordeal import SETTINGS


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Run one service for all faults of a module; each test has a tenant of its own."""
    with house(tmp_path_factory.mktemp("house"), SETTINGS) as running:
        yield running
