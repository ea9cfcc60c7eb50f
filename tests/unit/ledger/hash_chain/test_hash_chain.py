"""The audit chain: entries are written canonically, and every change of a chain is found."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ledger.hash_chain import (
    FORMER_MEMBERS,
    GENESIS,
    START,
    Break,
    Head,
    Outcome,
    Reason,
    draft,
    entry_bytes,
    verify,
)
from app.lib import canonical_json
from tests.unit.ledger.hash_chain.chains import (
    END,
    ROWS,
    STRANGER,
    SYSTEM,
    TENANT,
    Row,
    bare,
    broken,
    check,
    fields,
    former,
    head_of,
    nested,
    placeless,
    sealed,
)


@pytest.mark.parametrize("value", [1e17, 2**53, "\ud800", nested(127)], ids=str)
def test_what_could_not_be_verified_later_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        draft(placeless(fields(1, GENESIS, details={"a": value})))


def test_a_draft_of_other_members_is_refused() -> None:
    good = placeless(fields(1, GENESIS))
    for name in good:
        with pytest.raises(ValueError, match=name):
            draft({each: good[each] for each in good if each != name})
    with pytest.raises(ValueError, match="exactly the members"):
        draft(good | {"hash": GENESIS})


def test_a_good_chain_is_intact_and_leads_to_its_head() -> None:
    assert check(ROWS, end=END) is None


def test_entries_from_before_outcome_and_origin_verify_as_they_are() -> None:
    rows: list[Row] = []
    prev_hash = GENESIS
    for seq in range(1, 9):
        written = former if seq < 5 else lambda *place: entry_bytes(fields(*place))
        rows.append(sealed(seq, written(seq, prev_hash)))
        prev_hash = rows[-1][2].hex()
    assert check(rows) is None
    half = json.loads(rows[6][1])
    del half["origin"]
    rows[6] = sealed(7, rfc8785.dumps(half))
    assert broken(rows) == (7, Reason.NOT_AN_ENTRY)


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
        assert verify(bare(rows()), tenant_id=TENANT, end=end) is None
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_nothing_is_read_behind_the_first_break() -> None:
    def rows() -> Iterator[Row]:
        yield ROWS[0]
        yield ROWS[2]
        pytest.fail("read on")

    assert verify(bare(rows()), tenant_id=TENANT, end=END) is not None


@settings(max_examples=200)
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


@given(st.integers(1, 20))
def test_an_entry_inserted_twice_is_found_behind_the_first(seq: int) -> None:
    rows = [*ROWS[:seq], ROWS[seq - 1], *ROWS[seq:]]
    assert broken(rows) == (seq + 1, Reason.OUT_OF_ORDER)


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


def test_a_verified_head_that_differs_from_the_one_kept_is_a_break() -> None:
    found = check([], after=END, end=Head(20, GENESIS))
    assert found == Break(20, Reason.OTHER_HEAD, GENESIS, END.hash)


def test_an_end_before_a_verified_head_is_a_break() -> None:
    found = check([], after=END, end=head_of(ROWS[:10]))
    assert found == Break(11, Reason.BEYOND_END, "the end at 10", "20")


def test_another_tenants_chain_is_found_at_its_first_entry() -> None:
    found = verify(bare(ROWS), tenant_id=STRANGER, end=END)
    assert found == Break(1, Reason.WRONG_TENANT, STRANGER, TENANT)


TRICKS = [
    GENESIS,
    TENANT,
    "prev_hash",
    "seq",
    f',"prev_hash":"{GENESIS}","request_id":null,"seq":1',
    '"}',
    "{",
    "\\",
    "é",
    "\x7f",
    "\ufb33",
    "😀",
    "",
]
texts = st.one_of(st.sampled_from(TRICKS), st.text(max_size=5))
values = st.recursive(
    st.one_of(
        texts, st.none(), st.booleans(), st.integers(-(10**15), 10**15), st.floats(-1e9, 1e9)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {
        "seq": st.sampled_from([1, 2, "1", None]),
        "at": texts,
        "tenant_id": st.sampled_from([TENANT, STRANGER]),
        "actor": st.one_of(st.just(SYSTEM), values),
        "action": texts,
        "target": st.one_of(st.just(SYSTEM), values),
        "details": st.one_of(st.dictionaries(texts, values, max_size=3), values),
        "request_id": st.one_of(st.none(), texts),
        "outcome": st.one_of(st.sampled_from(Outcome).map(str), values),
        "origin": st.one_of(st.none(), texts),
        "prev_hash": st.sampled_from([GENESIS, END.hash]),
    }
)


@given(entries, st.integers(1, 2**53 - 1))
def test_a_draft_around_its_place_is_the_entry(entry: dict[str, Any], seq: int) -> None:
    moment = "2026-11-21T09:00:00.123456Z"
    pieces = draft(placeless(entry))
    place = (moment.encode(), END.hash.encode(), b"%d" % seq, b"")
    whole = entry | {"at": moment, "prev_hash": END.hash, "seq": seq}
    joined = b"".join(part for pair in zip(pieces, place, strict=True) for part in pair)
    assert joined == rfc8785.dumps(whole)


@settings(max_examples=250)
@given(entries, st.data())
def test_nothing_passes_that_another_reader_refuses(
    entry: dict[str, Any], data: st.DataObject
) -> None:
    body = canonical_json.dumps(entry)
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(body)))
        stop = data.draw(st.integers(start, min(start + 8, len(body))))
        splice = data.draw(st.sampled_from([b"", b" ", b'"', b"}", b",", b"1", body[:start]]))
        body = body[:start] + splice + body[stop:]
    assert (check([sealed(1, body)]) is None) == is_good_for_another_reader(body)


def is_good_for_another_reader(body: bytes) -> bool:
    try:
        entry = canonical_json.parse(body)
    except ValueError:
        return False
    return (
        isinstance(entry, dict)
        and rfc8785.dumps(entry) == body
        and entry.keys() in (fields(1, GENESIS).keys(), FORMER_MEMBERS)
        and entry["seq"] == 1
        and type(entry["seq"]) is int
        and entry["prev_hash"] == GENESIS
        and entry["tenant_id"] == TENANT
    )


def test_details_of_any_depth_that_can_be_written_can_be_verified() -> None:
    body = entry_bytes(fields(1, GENESIS, details={"a": nested(126)}))
    assert check([sealed(1, body)]) is None
    deeper = body.replace(b"[]", b"[[]]")
    assert broken([sealed(1, deeper)]) == (1, Reason.NOT_CANONICAL)
