"""A good chain verifies up to its head, in bounded memory."""

import tracemalloc
from collections.abc import Iterator

import pytest

from app.ledger.hash_chain import GENESIS, START, Head, Reason, entry_bytes, verify
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
    assert check(ROWS, end=END) is None


def test_a_chain_may_not_go_on_behind_its_end() -> None:
    assert broken(ROWS, end=head_of(ROWS[:10])) == (11, Reason.BEYOND_END)


@pytest.mark.parametrize("cut", [0, 1, 7, 20])
def test_a_verification_goes_on_where_another_ended(cut: int) -> None:
    first = head_of(ROWS[:cut]) if cut else START
    assert cut == 0 or check(ROWS[:cut], end=first) is None
    assert check(ROWS[cut:], after=first, end=END) is None


def test_memory_does_not_grow_with_the_chain() -> None:
    def rows() -> Iterator[Row]:
        prev_hash = GENESIS
        for seq in range(1, 101):
            entry = fields(seq, prev_hash, details={"name": "x" * 100_000})
            row = sealed(seq, entry_bytes(entry))
            yield row
            prev_hash = row[2].hex()

    end = START
    for seq, _, stored in rows():
        end = Head(seq, stored.hex())
    assert end.seq == 100
    tracemalloc.start()
    try:
        assert verify(rows(), tenant_id=TENANT, end=end) is None
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_nothing_is_read_behind_the_first_break() -> None:
    def rows() -> Iterator[Row]:
        yield ROWS[0]
        yield ROWS[2]
        pytest.fail("read on")

    assert verify(rows(), tenant_id=TENANT, end=END) is not None
