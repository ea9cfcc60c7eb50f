"""The roots from outside."""

from pathlib import Path

import pytest

from tests.unit.verify import packs
from tests.unit.verify.pack.checking import POLICY


@pytest.fixture
def roots(tmp_path: Path) -> list[object]:
    """Whom an auditor believes: the service's key, and a policy."""
    (tmp_path / "key.pem").write_bytes(packs.KEY.public.pem)
    (tmp_path / "policy").write_text(POLICY)
    return ["--key", tmp_path / "key.pem", "--policy", tmp_path / "policy"]
