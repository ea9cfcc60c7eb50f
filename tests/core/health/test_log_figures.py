"""Figures of the log: what is stored says how far behind it is, also before any worker ran."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.core.anchoring.evidence import Voucher
from app.core.health import log_figures
from app.core.health.log_figures import LogFigures
from app.errors import LogHeadLost
from dev.tsa import KeyType, TimestampAuthority
from jobs.process.runtime import Runtime
from tests.support.evidence.anchoring import Place, new_place, put_line, put_stamp
from tests.support.evidence.logs import add_leaves
from tests.support.evidence.witnesses import Witness

OTHERS = frozenset((Voucher.TIMESTAMPS, Voucher.WITNESSES))
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


def read(place: Place) -> LogFigures:
    with place.database.across_tenants() as session:
        return log_figures.read(session, OTHERS)


def test_a_log_that_has_not_begun_has_no_head_and_nothing_waits(place: Place) -> None:
    nothing = dict.fromkeys((Voucher.LOG, *OTHERS), 0.0)
    assert read(place) == LogFigures(None, 0, 0, 0.0, None, nothing)


def test_leaves_that_wait_are_counted_with_the_age_of_the_oldest(place: Place) -> None:
    place.grow(3)
    add_leaves(place.database, 2)
    place.run(AGED)
    seen = read(place)
    assert (seen.size, seen.waiting) == (3, 2)
    assert AN_HOUR <= seen.oldest_waiting < 2 * AN_HOUR
    place.publish()
    assert (read(place).size, read(place).waiting, read(place).oldest_waiting) == (5, 0, 0.0)


def test_what_halted_the_log_is_named_until_it_is_put_right(place: Place) -> None:
    place.grow()
    kept = place.head.read_bytes()
    place.head.unlink()
    add_leaves(place.database, 1)
    with pytest.raises(LogHeadLost):
        place.world.sequencer().run()
    assert read(place).trouble == LogHeadLost.slug
    place.head.write_bytes(kept)
    place.publish()
    assert read(place).trouble is None


def test_a_copy_that_was_just_restored_says_how_old_it_is(place: Place, tmp_path: Path) -> None:
    """No worker has run, no process has counted: the rows say it."""
    place.tenant()
    place.grow()
    put_stamp(place.owner, TimestampAuthority(tmp_path / "tsa", KeyType.P256))
    witness = Witness("witness.test/one")
    witness.log = place.key()
    put_line(place.owner, witness)
    before = read(place).unanchored
    assert before[Voucher.TIMESTAMPS] == before[Voucher.WITNESSES] == 0
    place.grow()
    for statement in (
        "UPDATE audit_entries SET at = at - interval '3 days'",
        "UPDATE checkpoints SET published_at = published_at - interval '3 days'",
    ):
        place.run(statement)
    seen = read(place)
    assert seen.head_age is not None
    for age in (seen.head_age, *seen.unanchored.values()):
        assert THREE_DAYS <= age < THREE_DAYS + AN_HOUR
    assert place.troubles() == [], "no tick has looked yet"
    place.anchor()
    assert read(place).unanchored[Voucher.LOG] == 0


def test_an_authority_that_is_not_configured_is_not_missed(place: Place) -> None:
    place.grow()
    with place.database.across_tenants() as session:
        assert set(log_figures.read(session, frozenset()).unanchored) == {Voucher.LOG}
