"""The policy that lists the log of the exports."""

from pathlib import Path

import pytest

from tests.unit.verify import packs


@pytest.fixture
def policy(tmp_path: Path) -> list[object]:
    text = f"log {packs.LOG.verifier_key}\nwitness w {packs.witness_key(9)}\nquorum w\n"
    (tmp_path / "policy").write_text(text)
    return ["--policy", tmp_path / "policy"]
