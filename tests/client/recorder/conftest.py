"""Recorders of a test's tenant, each closed at its end, and what the service has of them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from record_service import Recorder

from tests.support.callers.api import Api, ApiOf, FreshTenant

MakeRecorder = Callable[..., Recorder]


class Arrived:
    """What the service has of one tenant."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def records(self, **query: Any) -> list[dict[str, Any]]:
        """Return all records with their content, oldest first."""
        return self.all("/v1/records", order="asc", include="content", **query)

    def all(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """Return all rows of a list."""
        found: list[dict[str, Any]] = []
        asked = {"limit": 200, **query}
        while True:
            page = self.api.get(path, query_string=asked).json
            found += page["data"]
            if page["next_cursor"] is None:
                return found
            asked["cursor"] = page["next_cursor"]

    def one(self) -> dict[str, Any]:
        """Return the only record, with its content."""
        (found,) = self.records()
        return found

    def list(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """Return the first page of a list."""
        rows: list[dict[str, Any]] = self.api.get(path, query_string=query).json["data"]
        return rows


@pytest.fixture
def arrived(api: ApiOf) -> Arrived:
    """Return what the service has of this test's tenant."""
    return Arrived(api())


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Return the folder that the recorders of a test share."""
    return tmp_path / "spools"


@pytest.fixture
def recorder(base_url: str, tenant: FreshTenant, spool: Path) -> Iterator[MakeRecorder]:
    """Return a maker of strict recorders."""
    made: list[Recorder] = []

    def make(**options: Any) -> Recorder:
        told = {
            "agent": "refund-desk",
            "principal": "dana@example.com",
            "base_url": base_url,
            "key": tenant.root_key,
            "spool": spool,
            "strict": True,
        }
        made.append(Recorder(**{**told, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close(0.1)


def steps_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the steps of a record by their names."""
    return {step["name"]: step for step in json.loads(json.dumps(record["steps"]))}
