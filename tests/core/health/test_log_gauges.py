"""Gauges of the log: what is stored says how far behind it is, also before any worker ran."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.core.anchoring.evidence import Voucher
from app.errors import LogHeadLost
from app.ledger.policy import Policy
from app.settings import Settings
from dev.tsa import KeyType, TimestampAuthority
from jobs.process.runtime import Runtime
from tests.core.health import conftest
from tests.support.evidence.anchoring import Place, new_place, put_line, put_stamp
from tests.support.evidence.logs import add_leaves
from tests.support.evidence.witnesses import Witness

THREE_DAYS = 3 * 86_400
# A guard: what a test does takes no hour.
AN_HOUR = 3_600
# An id begins with its time in milliseconds (UUIDv7).
AGED = """
UPDATE log_leaves
   SET id = (lpad(to_hex(floor(extract(epoch FROM now()) - 3600)::bigint * 1000), 12, '0')
             || right(replace(id::text, '-', ''), 20))::uuid
 WHERE leaf_index IS NULL
"""


@pytest.fixture
def place(log_runtime: Runtime, log_owner: Engine, tmp_path: Path) -> Iterator[Place]:
    with new_place(log_runtime, log_owner, tmp_path) as made:
        yield made


def read(place: Place, settings: Settings) -> dict[str, Any]:
    """Return the value of each gauge of the log, or its values by label."""
    witness = Witness("witness.test/one")
    lines = f"witness one {witness.vkey} http://127.0.0.1:9/\nquorum one\n"
    outside = replace(settings, tsa_url="http://x", witness_policy=Policy.parse(lines.encode()))
    with place.database.across_tenants() as session:
        return {
            name: {labels[0]: value for labels, value in each.values.items()}
            if each.labels
            else each.values[()]
            for name, each in conftest.read(session, outside).items()
        }


def test_leaves_that_wait_are_counted_with_the_age_of_the_oldest(
    place: Place, settings: Settings
) -> None:
    seen = read(place, settings)
    assert (seen["log_size"], seen["log_leaves_waiting"]) == (0, 0)
    assert "log_head_age_seconds" not in seen, "the log has not begun"
    assert set(seen["log_halted"].values()) == {0}
    place.grow(3)
    add_leaves(place.database, 2)
    place.run(AGED)
    seen = read(place, settings)
    assert (seen["log_size"], seen["log_leaves_waiting"]) == (3, 2)
    assert AN_HOUR <= seen["log_leaf_waiting_seconds"] < 2 * AN_HOUR
    place.publish()
    seen = read(place, settings)
    assert (seen["log_size"], seen["log_leaves_waiting"]) == (5, 0)
    assert seen["log_leaf_waiting_seconds"] == 0


def test_what_halted_the_log_is_named_until_it_is_put_right(
    place: Place, settings: Settings
) -> None:
    place.grow()
    kept = place.head.read_bytes()
    place.head.unlink()
    add_leaves(place.database, 1)
    with pytest.raises(LogHeadLost):
        place.world.sequencer().run()
    assert read(place, settings)["log_halted"][LogHeadLost.slug] == 1
    place.head.write_bytes(kept)
    place.publish()
    assert set(read(place, settings)["log_halted"].values()) == {0}


def test_a_copy_that_was_just_restored_says_how_old_it_is(
    place: Place, tmp_path: Path, settings: Settings
) -> None:
    """No worker has run, no process has counted: the rows say it."""
    place.tenant()
    place.grow()
    put_stamp(place.owner, TimestampAuthority(tmp_path / "tsa", KeyType.P256))
    witness = Witness("witness.test/one")
    witness.log = place.key()
    put_line(place.owner, witness)
    before = read(place, settings)["unanchored_age_seconds"]
    assert before[Voucher.TIMESTAMPS] == before[Voucher.WITNESSES] == 0
    place.grow()
    for statement in (
        "UPDATE audit_entries SET at = at - interval '3 days'",
        "UPDATE checkpoints SET published_at = published_at - interval '3 days'",
    ):
        place.run(statement)
    seen = read(place, settings)
    for age in (seen["log_head_age_seconds"], *seen["unanchored_age_seconds"].values()):
        assert THREE_DAYS <= age < THREE_DAYS + AN_HOUR
    assert place.troubles() == [], "no tick has looked yet"
    place.anchor()
    assert read(place, settings)["unanchored_age_seconds"][Voucher.LOG] == 0
