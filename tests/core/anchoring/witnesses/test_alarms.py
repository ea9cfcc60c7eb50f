"""A witness that cosigned another log under this log's name raises an alarm."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import structlog

from tests.support.evidence.anchoring import Place
from tests.support.evidence.witnessed import Witnessed
from tests.support.evidence.witnesses import SIZE, Witness
from tests.support.servers.receivers import Request, http_answer


def _log_of_another(place: Place, witness: Witness, size: int) -> None:
    """Have the witness cosign a larger log of the same name and key, which is not this one."""
    witness.faults = [lambda _: http_answer(409, f"{size}\n".encode(), SIZE)]


def test_a_witness_that_saw_more_than_was_published_is_an_alarm(witnessed: Witnessed) -> None:
    place = witnessed.place
    _log_of_another(place, witnessed.one, 4)
    with structlog.testing.capture_logs() as lines:
        place.stamp()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == (witnessed.part(witnessed.one), True)
    assert "size 4, and 3 is all that was published" in trouble.detail
    (told,) = [each for each in lines if each["event"] == "witness_alarm"]
    assert told["log_level"] == "critical"
    assert witnessed.stored() == [(3, "two")]


@pytest.mark.parametrize(
    ("then", "said"),
    [
        # The database was restored without its head: same name, same key, another tree.
        (lambda place: place.grow(), "422"),
        (
            lambda place: place.run("DELETE FROM checkpoint_cosignatures"),
            "another log of ours of size 3",
        ),
    ],
    ids=["a larger log", "the same size"],
)
def test_a_witness_that_cosigned_another_root_is_an_alarm(
    witnessed: Witnessed, then: Callable[[Place], object], said: str
) -> None:
    place, one = witnessed.place, witnessed.one
    place.stamp()
    assert one.seen is not None
    one.seen = replace(one.seen, root=b"\1" * 32)
    then(place)
    place.stamp()
    (trouble,) = place.troubles()
    assert trouble.alarm
    assert said in trouble.detail


def test_also_if_that_one_does_not_say_again_at_which_size_it_is(witnessed: Witnessed) -> None:
    witnessed.one.faults = [
        lambda _: http_answer(409, b"3\n", SIZE),
        lambda _: http_answer(409, b"another root\n"),
    ]
    witnessed.place.stamp()
    (trouble,) = witnessed.place.troubles()
    assert trouble.alarm
    assert "another log of ours of size 3" in trouble.detail


def test_an_alarm_stays_until_the_witness_accepts_what_is_published(witnessed: Witnessed) -> None:
    place = witnessed.place
    _log_of_another(place, witnessed.one, 9)
    with structlog.testing.capture_logs() as lines:
        place.stamp()
        said = place.troubles()[0].detail
        witnessed.one.faults = [lambda _: http_answer(500)]
        place.stamp()
        (trouble,) = place.troubles()
        assert (trouble.alarm, trouble.detail) == (True, said), "being away takes nothing back"
        _log_of_another(place, witnessed.one, 9)
        place.retry()
        place.stamp()
    assert place.troubles() == []
    told = [each["event"] for each in lines if each.get("part") == witnessed.part(witnessed.one)]
    assert told == ["witness_alarm", "anchoring_recovered"]


def test_a_witness_ahead_of_this_checkpoint_but_not_of_the_newest_is_no_alarm(
    witnessed: Witnessed,
) -> None:
    """Another worker published and submitted more while this one was asking."""
    place = witnessed.place
    one = witnessed.one

    def overtake(request: Request) -> bytes:
        place.grow(4)
        one.seen = place.world.published().checkpoint
        return http_answer(409, f"{one.size}\n".encode(), SIZE)

    one.faults = [overtake]
    place.stamp()
    assert place.troubles() == []
    assert (7, "one") in witnessed.stored()
