"""Witnesses that fail or raise alarms hold publication back, and that is reported."""

from dataclasses import replace

import structlog

from app.core.health import gauges
from tests.core.anchoring.quorum.gated import AWAY, Gated
from tests.support.evidence.witnesses import SIZE
from tests.support.servers.receivers import http_answer


def test_a_witness_that_fails_is_left_in_peace_and_asked_when_it_is_back(gated: Gated) -> None:
    gated.one.faults = [lambda _: AWAY]
    gated.sign()
    for _ in range(5):
        gated.place.work()
        gated.sequencer().run()
    assert gated.one.asked == 1
    gated.later()
    gated.sequencer().run()
    gated.place.work()
    assert gated.one.asked == 2
    gated.sequencer().run()
    assert gated.published() == 4


def test_a_witness_that_was_just_asked_is_asked_for_the_next_checkpoint_at_once(
    gated: Gated,
) -> None:
    for size in (4, 5, 6):
        gated.sign()
        gated.place.work()
        gated.sequencer().run()
        assert gated.published() == size


def test_a_quorum_that_stays_away_is_a_trouble_after_its_grace(gated: Gated) -> None:
    place = gated.place
    gated.one.faults = [lambda _: AWAY] * 2
    gated.sign()
    place.work()
    gated.later(100)
    gated.sequencer().run()
    assert place.troubles() == []
    place.work()
    gated.later(100)
    with structlog.testing.capture_logs() as lines:
        gated.sequencer().run()
        gated.sequencer().run()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == ("quorum", False)
    assert f"cosigned size 4. Not cosigned by {gated.part(gated.one)}: " in trouble.detail
    assert gated.two.name not in trouble.detail
    (told,) = [each for each in lines if each["event"] == "unanchored"]
    assert (told["log_level"], told["part"]) == ("error", "quorum")
    with place.database.across_tenants() as session:
        assert gauges.read_totals(session)["checkpoint_waiting_seconds"] >= 200
    place.stamp()
    assert [each.part for each in place.troubles()] == ["quorum"], "a tick does not end it"
    assert gated.published() == 3
    gated.sequencer().run()
    assert gated.published() == 4
    assert place.troubles() == []
    with place.database.across_tenants() as session:
        assert gauges.read_totals(session)["checkpoint_waiting_seconds"] == 0


def test_a_witness_that_cosigned_another_log_is_an_alarm_and_nothing_is_published(
    gated: Gated,
) -> None:
    """A copy of this database had another tree of the next size cosigned."""
    gated.sign()
    gated.place.work()
    gated.sequencer().run()
    assert gated.one.seen is not None
    gated.one.seen = replace(gated.one.seen, size=5, root=b"\1" * 32)
    gated.sign()
    assert gated.settle() == 4
    (trouble,) = gated.place.troubles()
    assert (trouble.part, trouble.alarm) == (gated.part(gated.one), True)
    assert "another log of ours of size 5" in trouble.detail


def test_a_witness_beyond_all_that_it_was_shown_is_an_alarm(gated: Gated) -> None:
    gated.one.faults = [lambda _: http_answer(409, b"5\n", SIZE)]
    gated.sign()
    gated.place.work()
    (trouble,) = gated.place.troubles()
    assert trouble.alarm
    assert "size 5, and 4 is all that was published" in trouble.detail
