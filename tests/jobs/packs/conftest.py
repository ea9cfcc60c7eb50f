"""Workers that build packs: one trusts an authority, one has a log of its own and a witness too."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.core import tenants
from app.evidence.timestamps import read_certificates
from app.ledger.policy import Policy
from app.settings import Settings
from dev.tsa import KeyType, TimestampAuthority
from tests.support.callers.api import FreshTenant, serving
from tests.support.evidence.logs import new_world
from tests.support.evidence.packing import Packer, packer, set_up_as
from tests.support.evidence.witnesses import Witness
from tests.support.secrets import MASTER_KEYS
from tests.support.workers.worlds import opened_runtime

__all__ = ["packer"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TimestampAuthority:
    return TimestampAuthority(tmp_path_factory.mktemp("tsa"), KeyType.P256)


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness("one.test")


@pytest.fixture
def trusting(packer: Packer, settings: Settings, authority: TimestampAuthority) -> Iterator[Packer]:
    """Return a packer of a service that trusts the authority."""
    roots = read_certificates(authority.ca_file.read_bytes())
    with set_up_as(packer, settings, tsa_ca_file=roots) as made:
        yield made


@pytest.fixture(scope="module")
def own_settings(
    log_settings: Settings, authority: TimestampAuthority, witness: Witness
) -> Settings:
    """Return settings that trust both, with a database for a log of one's own."""
    policy = Policy.parse(f"witness w {witness.vkey}\nquorum w\n".encode())
    roots = read_certificates(authority.ca_file.read_bytes())
    return replace(log_settings, tsa_ca_file=roots, witness_policy=policy)


@pytest.fixture
def own(own_settings: Settings, log_owner: Engine, tmp_path: Path) -> Iterator[Packer]:
    """Return a packer with a log and keys that no other test uses."""
    with (
        new_world(own_settings, log_owner, tmp_path) as world,
        serving(own_settings) as api,
        opened_runtime(own_settings) as runtime,
    ):
        tenant = FreshTenant(*tenants.create(world.database, MASTER_KEYS, "the test's tenant"))
        yield Packer(lambda key=tenant.root_key: api(key), tenant, runtime, world.sequencer())
