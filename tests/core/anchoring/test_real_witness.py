"""A witness that somebody else wrote: aics-witness, from PyPI, where it is installed.

It needs Python 3.12 or newer, in any environment:

    python3.12 -m venv /tmp/witness && /tmp/witness/bin/pip install aics-witness
    AICS_WITNESS=/tmp/witness/bin/aics-witness .venv/bin/pytest -m real_witness
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from app.core.anchoring.evidence import Rank
from app.ledger.notes import Note, VerifierKey
from app.ledger.policy import Policy
from tests.support.evidence.anchoring import Place

PROGRAM = os.environ.get("AICS_WITNESS") or shutil.which("aics-witness")

pytestmark = [
    pytest.mark.real_witness,
    pytest.mark.skipif(PROGRAM is None, reason="aics-witness is not installed ($AICS_WITNESS)"),
]


class RealWitness:
    """An aics-witness in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        said = self._run("init", "--name", "witness.test/real", "--listen", "127.0.0.1:0")
        self.vkey = VerifierKey.parse(said.splitlines()[0])

    def trust(self, log: VerifierKey) -> None:
        self._run("add-log", "--origin", log.name, "--vkey", str(log))

    def evidence(self) -> str:
        """Return what it keeps of logs that misbehaved."""
        return self._run("evidence")

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve for the length of a `with`; yield the submission prefix."""
        command = [str(PROGRAM), "serve", "-c", str(self._folder / "witness.json")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                assert server.stderr is not None
                line = next(line for line in server.stderr if "add-checkpoint at " in line)
                yield (
                    line.rpartition("add-checkpoint at ")[2]
                    .rstrip(")\n")
                    .removesuffix("/add-checkpoint")
                )
            finally:
                server.terminate()

    def _run(self, verb: str, *more: str) -> str:
        command = [str(PROGRAM), verb, "-c", str(self._folder / "witness.json"), *more]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_real_witness_cosigns_as_the_log_grows_and_refuses_another_log(
    place: Place, tmp_path: Path
) -> None:
    folder = tmp_path / "witness"
    folder.mkdir()
    witness = RealWitness(folder)
    place.grow(3)
    witness.trust(place.key())
    with witness.serving() as url:
        policy = Policy.parse(f"witness real {witness.vkey} {url}\nquorum real\n".encode())
        place.set(witness_policy=policy)
        for leaves in (1, 2, 300):
            place.stamp()
            place.grow(leaves)
        place.stamp()
        assert place.troubles() == []
        assert _cosigned(place) == [3, 4, 6, 306]
        place.run("DELETE FROM checkpoint_cosignatures WHERE size > 3")
        place.grow()
        place.stamp()
        assert _cosigned(place) == [3, 307], "it was asked from 3, said 306, and was asked again"
        _check(place, policy)
        _rewrite(place)
        place.stamp()
    (trouble,) = place.troubles()
    assert trouble.alarm
    assert "422" in trouble.detail
    assert "consistency proof from size 307 to 400 does not verify" in witness.evidence()


def _cosigned(place: Place) -> list[int]:
    with place.owner.connect() as connection:
        query = "SELECT size FROM checkpoint_cosignatures ORDER BY size"
        return list(connection.scalars(text(query)))


def _check(place: Place, policy: Policy) -> None:
    best = place.chosen(10, policy)
    assert (best.rank, best.published.checkpoint.size) == (Rank.WITNESSED, 307)
    lines = "".join(f"{line}\n" for line in best.cosignatures)
    (signed,) = Note.parse(best.published.note + lines.encode()).signed_by(
        [each.key for each in policy.witnesses]
    )
    assert signed.seconds


def _rewrite(place: Place) -> None:
    """Begin the log anew under its name and key, as if it had never been, and grow beyond it."""
    place.run(
        "TRUNCATE checkpoints, log_tiles, log_leaves, checkpoint_cosignatures CASCADE;"
        " INSERT INTO checkpoints (generation, size, root) VALUES (1, 0, sha256(''))"
    )
    place.head.unlink()
    place.run("UPDATE log_generations SET head_kept = false")
    place.grow(400)
