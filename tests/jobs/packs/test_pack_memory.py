"""A pack of the largest bundle costs the memory of reading that bundle, and its download none."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.callers.api import FreshTenant
from tests.support.evidence.packing import Packer

KIB = 1024


def steps(count: int) -> list[dict[str, Any]]:
    """Return steps that PROV tells with twice as many bytes: quotes within JSON within JSON."""
    moment = "2026-01-31T12:00:00Z"
    return [
        {
            "name": f"s{number}",
            "kind": "k",
            "started_at": moment,
            "ended_at": moment,
            "status": "ok",
            "outputs": {f"out{number}": ['"' * 3_800]},
        }
        for number in range(count)
    ]


@pytest.mark.slow
def test_neither_a_build_nor_a_download_holds_a_pack(
    packer: Packer, environ: dict[str, str], tenant: FreshTenant
) -> None:
    record = packer.record(steps=steps(1_000))
    assert record["bundle"]["size"] > 6 * 1024 * 1024
    pack = len(packer.built(record)) / KIB
    assert pack > 2 * record["bundle"]["size"] / KIB
    done = subprocess.run(
        [sys.executable, "-m", "tests.jobs.packs.pack_memory", *who(tenant, record)],
        env={**os.environ, **environ, "LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
    )
    downloaded, read, built = map(int, done.stdout.split()[-3:])
    assert downloaded < pack * 3 / 4
    assert read > record["bundle"]["size"] / KIB, "what is measured moves at all"
    assert built < pack / 2


def who(tenant: FreshTenant, record: dict[str, Any]) -> tuple[str, str, str]:
    """Return what the process is told."""
    return str(tenant.id), record["id"], tenant.root_key
