"""Verifying a long chain ends at the first break, or when its time is over."""

import pytest

from app.core.verification import time_budget
from app.core.verification.checks import stored_chain
from app.core.verification.time_budget import Deadline, TakesLonger
from app.core.verification.verifier import Asked
from tests.support.evidence.chains import Place


def test_a_break_at_the_beginning_of_a_long_chain_leaves_the_rest_unread(place: Place) -> None:
    place.owner.lengthen(20_000)
    assert place.verify()["entries"] == 20_012
    place.owner.rewrite(3, action="other")
    assert place.broken() == (4, "bad_link")
    place.owner.forge_tail(3, 12)
    assert place.broken() == (5, "other_head")


def test_a_long_chain_is_left_in_the_middle_when_the_time_is_over(place: Place) -> None:
    place.owner.lengthen(5_000)
    with place.world.database.transaction(place.tenant_id, snapshot=True) as session:
        end = stored_chain.end(session, place.tenant_id)
        with pytest.raises(TakesLonger):
            stored_chain.check(session, place.tenant_id, end, Deadline(0))
    assert place.verify()["status"] == "intact"


def test_who_would_wait_for_more_than_some_seconds_is_told_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they may wait: others need the processor too."""
    monkeypatch.setattr(time_budget, "_EXPECTED_AT_MOST", 0.004)
    for asked in (Asked(), Asked(since_anchor=True)):
        assert place.verifier.verify(place.tenant_id, asked, seconds=60)
    place.owner.lengthen(300)
    for asked in (Asked(), Asked(since_anchor=True)):
        with pytest.raises(TakesLonger):
            place.verifier.verify(place.tenant_id, asked, seconds=60)
