"""Shares of what is scarce: so much in all, so much for one owner, something for each."""

from contextlib import ExitStack

import pytest

from app.lib.fair_shares import NoShare, Shares


class Holding:
    """Shares that are taken until the test ends."""

    def __init__(self, total: int, each: int) -> None:
        self.shares = Shares(total, each)
        self.stack = ExitStack()

    def take(self, owner: str, size: int, group: str | None = None) -> None:
        self.stack.enter_context(self.shares.held(owner, size, group))

    def refuses(self, owner: str, size: int, group: str | None = None) -> None:
        with pytest.raises(NoShare):
            self.take(owner, size, group)


def test_one_owner_has_its_share_and_no_more() -> None:
    shares = Holding(total=10, each=4)
    shares.take("a", 3)
    shares.refuses("a", 2)
    shares.take("b", 4)


def test_all_owners_together_have_the_whole_and_no_more() -> None:
    shares = Holding(total=10, each=6)
    shares.take("a", 6)
    shares.refuses("b", 5)
    shares.take("b", 4)


def test_what_is_larger_than_everything_is_given_to_an_owner_when_nothing_is_held() -> None:
    shares = Holding(total=10, each=4)
    shares.take("a", 11)
    shares.refuses("b", 1)
    shares.stack.close()
    shares.take("b", 4)


def test_owners_of_one_group_leave_as_much_as_they_hold() -> None:
    shares = Holding(total=12, each=6)
    shares.take("a", 3, "tenant")
    shares.take("b", 3, "tenant")
    shares.refuses("c", 1, "tenant")
    shares.take("d", 3, "other")
    shares.refuses("e", 1, "other")
    shares.take("f", 3, "third")
    shares.stack.close()
    shares.take("c", 6, "tenant")
