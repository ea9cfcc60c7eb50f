"""A session, a record, and where the record's share links are."""

from typing import Any

import pytest

from tests.support.callers.api import ApiOf
from tests.support.callers.making import make_record, make_session
from tests.support.evidence.packing import packer

__all__ = ["packer"]


@pytest.fixture
def session(api: ApiOf) -> dict[str, Any]:
    """Return an open session."""
    return make_session(api())


@pytest.fixture
def record(api: ApiOf) -> dict[str, Any]:
    """Return a record."""
    return make_record(api(), make_session(api())["id"])


@pytest.fixture
def path(record: dict[str, Any]) -> str:
    """Return where the record's links are."""
    return f"/v1/records/{record['id']}/share-links"
