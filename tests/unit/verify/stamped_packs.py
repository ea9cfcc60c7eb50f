"""Packs with a timestamp, and the verdict on it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.evidence import pack
from app.evidence.timestamps import Stamp
from tests.support.evidence.verifying import Answer, answer
from tests.unit.verify import packs
from tests.unit.verify.authorities import Authority

MOMENT = datetime(2026, 2, 1, 12, 0, 0, tzinfo=UTC)
TIME = "2026-02-01T12:00:00Z"
EVIDENCE = packs.evidence()


def stamped(response: bytes, chain: bytes, time: str = TIME) -> bytes:
    timestamp = Stamp(response, chain.decode(), time)
    return b"".join(pack.write(replace(EVIDENCE, timestamp=timestamp)))


def with_stamp(evidence: pack.Evidence, by: Authority, moment: datetime = MOMENT) -> pack.Evidence:
    """The same evidence with a timestamp of its checkpoint."""
    response = by.stamp(evidence.checkpoint, moment)
    timestamp = Stamp(response, by.chain.decode(), f"{moment:%Y-%m-%dT%H:%M:%SZ}")
    return replace(evidence, timestamp=timestamp)


def checked(folder: Path, data: bytes, *arguments: object) -> Answer:
    (folder / "pack.zip").write_bytes(data)
    return answer(folder / "pack.zip", *arguments)


def verdict(folder: Path, by: Authority, *, moment: datetime = MOMENT, **other: Any) -> str:
    """The verdict on a timestamp with something unusual about it, by a root given from outside."""
    response = by.stamp(EVIDENCE.checkpoint, moment, **other)
    (folder / "ca.pem").write_bytes(by.chain)
    data = stamped(response, by.chain, f"{moment:%Y-%m-%dT%H:%M:%SZ}")
    return checked(folder, data, "--tsa-ca", folder / "ca.pem").verdicts["checkpoint.tsr"]
