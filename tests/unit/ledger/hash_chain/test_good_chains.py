"""A good chain verifies up to its head, in bounded memory."""

import tracemalloc
from collections.abc import Iterator

import pytest

from app.ledger.hash_chain import GENESIS, START, Reason, Verification, entry_bytes, verify
from tests.unit.ledger.hash_chain.chains import (
    END,
    ROWS,
    TENANT,
    Row,
    broken,
    check,
    fields,
    head_of,
    sealed,
)


def test_a_good_chain_is_intact_and_leads_to_its_head() -> None:
    assert check(ROWS, end=END) == Verification(20, END, None)
    assert check(ROWS).intact


def test_a_chain_may_go_on_behind_a_known_head_but_not_behind_its_end() -> None:
    middle = head_of(ROWS[:10])
    assert check(ROWS, known=[middle]).intact
    assert broken(ROWS, end=middle) == (11, Reason.BEYOND_END)


def test_every_entry_may_be_a_known_head_even_twice() -> None:
    heads = [head_of(ROWS[:length]) for length in range(1, 21)]
    assert check(ROWS, known=iter([START, *heads, heads[-1]]), end=END).intact


@pytest.mark.parametrize("cut", [0, 1, 7, 20])
def test_a_verification_goes_on_where_another_ended(cut: int) -> None:
    first = check(ROWS[:cut]) if cut else Verification(0, START, None)
    assert first.intact
    rest = check(ROWS[cut:], after=first.head, known=[first.head], end=END)
    assert rest == Verification(20 - cut, END, None)


def test_memory_does_not_grow_with_the_chain() -> None:
    def rows() -> Iterator[Row]:
        prev_hash = GENESIS
        for seq in range(1, 101):
            entry = fields(seq, prev_hash, details={"name": "x" * 100_000})
            row = sealed(seq, entry_bytes(entry))
            yield row
            prev_hash = row[2].hex()

    tracemalloc.start()
    try:
        assert verify(rows(), tenant_id=TENANT).entries == 100
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_nothing_is_read_behind_the_first_break() -> None:
    def rows() -> Iterator[Row]:
        yield ROWS[0]
        yield ROWS[2]
        pytest.fail("read on")

    assert not verify(rows(), tenant_id=TENANT).intact
