"""Shares of what is scarce: so much in all, so much for one owner, something for each."""

import pytest

from app.lib.fair_shares import NoShare, Shares


def test_one_owner_has_its_share_and_no_more() -> None:
    shares = Shares(total=10, each=4)
    shares.take("a", 3)

    with pytest.raises(NoShare):
        shares.take("a", 2)
    shares.take("b", 4)


def test_all_owners_together_have_the_whole_and_no_more() -> None:
    shares = Shares(total=10, each=6)
    shares.take("a", 6)

    with pytest.raises(NoShare):
        shares.take("b", 5)
    shares.take("b", 4)


def test_what_is_larger_than_everything_is_given_to_an_owner_when_nothing_is_held() -> None:
    shares = Shares(total=10, each=4)
    with shares.held("a", 11), pytest.raises(NoShare):
        shares.take("b", 1)
    shares.take("b", 1)


def test_what_was_given_back_can_be_had_again() -> None:
    shares = Shares(total=4, each=4)
    for _ in range(3):
        with shares.held("a", 4):
            pass
    shares.take("a", 4)


def test_owners_of_one_group_leave_as_much_as_they_hold() -> None:
    shares = Shares(total=12, each=6)
    shares.take("a", 3, "tenant")
    shares.take("b", 3, "tenant")

    with pytest.raises(NoShare):
        shares.take("c", 1, "tenant")
    shares.take("d", 3, "other")
    with pytest.raises(NoShare):
        shares.take("e", 1, "other")
    shares.take("f", 3, "third")


def test_what_one_of_a_group_gives_back_another_of_it_can_have() -> None:
    shares = Shares(total=4, each=2)
    for owner in ("a", "b", "c"):
        shares.take(owner, 2, "tenant")
        shares.give_back(owner, 2, "tenant")
