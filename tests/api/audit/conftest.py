"""A service with a log of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import Engine

from app.core import tenants
from app.settings import Settings
from tests.api.audit.log_service import Service
from tests.support.callers.api import Api, application
from tests.support.evidence.logs import new_world
from tests.support.secrets import MASTER_KEYS


@pytest.fixture(scope="module")
def log_app(log_settings: Settings) -> Iterator[Flask]:
    """Return the web application over the database of these tests."""
    with application(log_settings) as opened:
        yield opened


@pytest.fixture
def service(
    log_app: Flask, log_settings: Settings, log_owner: Engine, tmp_path: Path
) -> Iterator[Service]:
    """Return a service whose log has not begun."""
    with new_world(log_settings, log_owner, tmp_path) as world:
        _, key = tenants.create(world.database, MASTER_KEYS, "the test's tenant")
        yield Service(world, Api(log_app.test_client(), key), Api(log_app.test_client(), None))
