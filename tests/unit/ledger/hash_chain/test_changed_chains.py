"""Changed, deleted, inserted and reordered entries are found at their place."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from app.ledger.hash_chain import GENESIS, START, Break, Head, Reason, entry_bytes, verify
from tests.unit.ledger.hash_chain.chains import (
    END,
    ROWS,
    STRANGER,
    TENANT,
    Row,
    broken,
    check,
    fields,
    head_of,
    sealed,
)


@settings(max_examples=600)
@given(st.data())
def test_any_changed_byte_of_a_body_is_found_at_its_entry(data: st.DataObject) -> None:
    rows = list(ROWS)
    seq, body, stored = data.draw(st.sampled_from(rows))
    place = data.draw(st.integers(0, len(body) - 1))
    changed = bytearray(body)
    changed[place] ^= data.draw(st.integers(1, 255))
    rows[seq - 1] = (seq, bytes(changed), stored)
    assert broken(rows) == (seq, Reason.BAD_HASH)


@given(st.sampled_from(ROWS), st.integers(0, 255))
def test_any_changed_bit_of_a_stored_hash_is_found_at_its_entry(row: Row, bit: int) -> None:
    rows = list(ROWS)
    seq, body, stored = row
    flipped = (int.from_bytes(stored, "big") ^ 1 << bit).to_bytes(32, "big")
    rows[seq - 1] = (seq, body, flipped)
    assert broken(rows) == (seq, Reason.BAD_HASH)


@given(st.sampled_from(ROWS), st.integers(0, 12))
def test_an_entry_that_was_changed_and_rehashed_is_found_at_the_next(row: Row, days: int) -> None:
    rows = list(ROWS)
    seq, body, _ = row
    entry = json.loads(body)
    entry["details"] = {"days": days}
    rows[seq - 1] = sealed(seq, entry_bytes(entry))
    if seq < len(rows):
        assert broken(rows) == (seq + 1, Reason.BAD_LINK)
    else:
        assert check(rows) is None
        changed = head_of(rows).hash
        assert check(rows, end=END) == Break(seq, Reason.OTHER_HEAD, END.hash, changed)


@given(st.integers(1, 20))
def test_a_chain_rewritten_from_anywhere_fails_at_the_head_kept_of_it(first: int) -> None:
    rows = ROWS[: first - 1]
    for seq in range(first, 21):
        prev_hash = rows[-1][2].hex() if rows else GENESIS
        rows.append(sealed(seq, entry_bytes(fields(seq, prev_hash, action="key.mint"))))
    assert check(rows) is None
    assert broken(rows, end=END) == (20, Reason.OTHER_HEAD)


@given(st.integers(1, 19))
def test_a_deleted_entry_is_found_at_its_place(seq: int) -> None:
    rows = [row for row in ROWS if row[0] != seq]
    assert check(rows) == Break(seq, Reason.MISSING, str(seq), str(seq + 1))


@given(st.integers(1, 19))
def test_a_deleted_entry_with_the_rest_renumbered_is_found_at_its_place(seq: int) -> None:
    rows = [row if row[0] < seq else (row[0] - 1, *row[1:]) for row in ROWS if row[0] != seq]
    assert broken(rows) == (seq, Reason.WRONG_SEQ)


@given(st.integers(1, 20))
def test_an_entry_inserted_twice_is_found_behind_the_first(seq: int) -> None:
    rows = [*ROWS[:seq], ROWS[seq - 1], *ROWS[seq:]]
    assert broken(rows) == (seq + 1, Reason.OUT_OF_ORDER)


@given(st.integers(1, 20))
def test_a_forged_entry_inserted_before_another_is_found_behind_it(seq: int) -> None:
    prev_hash = ROWS[seq - 2][2].hex() if seq > 1 else GENESIS
    forged = sealed(seq, entry_bytes(fields(seq, prev_hash, action="key.revoke")))
    moved = [(row[0] + 1, *row[1:]) for row in ROWS[seq - 1 :]]
    assert broken([*ROWS[: seq - 1], forged, *moved]) == (seq + 1, Reason.WRONG_SEQ)


@given(st.integers(1, 20), st.integers(1, 20))
def test_swapped_entries_are_found_at_the_first_of_them(one: int, other: int) -> None:
    first, second = sorted((one, other))
    rows = list(ROWS)
    rows[first - 1], rows[second - 1] = rows[second - 1], rows[first - 1]
    if first != second:
        assert broken(rows) == (first, Reason.MISSING)
        in_place = [(place, *row[1:]) for place, row in enumerate(rows, 1)]
        assert broken(in_place) == (first, Reason.WRONG_SEQ)


@given(st.integers(1, 19))
def test_a_chain_cut_at_its_end_is_found_with_a_later_head(length: int) -> None:
    rows = ROWS[:length]
    assert check(rows) is None
    missing = Break(length + 1, Reason.MISSING, str(length + 1), "the end of the chain")
    assert check(rows, end=END) == missing


def test_an_emptied_chain_is_never_intact_from_its_start() -> None:
    for end in (START, END):
        assert broken([], end=end) == (1, Reason.MISSING)


def test_no_news_since_a_verified_head_is_no_break() -> None:
    assert check([], after=END, end=END) is None


def test_a_verified_head_that_differs_from_the_one_kept_is_a_break() -> None:
    found = check([], after=END, end=Head(20, GENESIS))
    assert found == Break(20, Reason.OTHER_HEAD, GENESIS, END.hash)


def test_an_end_before_a_verified_head_is_a_break() -> None:
    found = check([], after=END, end=head_of(ROWS[:10]))
    assert found == Break(11, Reason.BEYOND_END, "the end at 10", "20")


def test_another_tenants_chain_is_found_at_its_first_entry() -> None:
    found = verify(ROWS, tenant_id=STRANGER, end=END)
    assert found == Break(1, Reason.WRONG_TENANT, STRANGER, TENANT)
