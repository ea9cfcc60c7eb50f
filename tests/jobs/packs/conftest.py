"""A worker that builds packs, and one that trusts a timestamp authority."""

from collections.abc import Iterator

import pytest

from app.dev.tsa import TimestampAuthority
from app.lib.crypto.timestamps import read_certificates
from app.settings import Settings
from tests.support.evidence.packing import Packer, packer, set_up_as

__all__ = ["packer"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TimestampAuthority:
    return TimestampAuthority(tmp_path_factory.mktemp("tsa"))


@pytest.fixture
def trusting(packer: Packer, settings: Settings, authority: TimestampAuthority) -> Iterator[Packer]:
    """Return a packer of a service that trusts the authority."""
    roots = read_certificates(authority.ca_file.read_bytes())
    with set_up_as(packer, settings, tsa_ca_file=roots) as made:
        yield made
