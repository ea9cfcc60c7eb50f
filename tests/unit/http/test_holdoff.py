"""What was refused a moment ago: remembered for so long, and only so much of it."""

from app.lib.gateway.holdoff import Holdoff
from tests.support.faults import Hands


def test_a_refusal_is_remembered_for_its_time_and_then_forgotten() -> None:
    hands = Hands()
    holdoff = Holdoff(1.0, clock=hands)
    holdoff.remember("a", "full")
    hands.forward(0.9)
    holdoff.remember("b", "full, too")

    assert (holdoff.why("a"), holdoff.why("b"), holdoff.why("c")) == ("full", "full, too", None)
    hands.forward(0.2)
    assert (holdoff.why("a"), holdoff.why("b")) == (None, "full, too")


def test_a_refusal_that_is_repeated_counts_from_its_last_time() -> None:
    hands = Hands()
    holdoff = Holdoff(1.0, clock=hands)
    for _ in range(3):
        holdoff.remember("a", "full")
        hands.forward(0.9)

    assert holdoff.why("a") == "full"


def test_the_oldest_is_forgotten_where_too_many_are_remembered() -> None:
    holdoff = Holdoff(1.0, most=2, clock=Hands())
    for what in ("a", "b", "c"):
        holdoff.remember(what, "full")

    assert (holdoff.why("a"), holdoff.why("b"), holdoff.why("c")) == (None, "full", "full")
