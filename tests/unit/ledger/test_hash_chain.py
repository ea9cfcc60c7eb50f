"""The audit chain against every single edit, against forgers who rehash, and look-alikes."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ledger import hash_chain, plain_entry
from app.ledger.hash_chain import (
    GENESIS,
    START,
    Break,
    Head,
    Reason,
    Verification,
    draft,
    entry_bytes,
    entry_hash,
    verify,
)
from app.lib import canonical_json

Row = tuple[int, bytes, bytes]

TENANT = "ten_0192f0c4aaaabbbbccccddddeeeeffff"
STRANGER = "ten_ffffeeeeddddccccbbbbaaaa4c0f2910"

DETAILS: list[dict[str, Any]] = [
    {"name": "the test's tenant"},
    {"name": "a key", "role": "read"},
    {},
    {"event_types": ["finding.created", "session.completed"], "max_in_flight": 4},
    {"bundle_retention_days": {"new": 30, "old": None}},
    {"name": 'Zürich "quoted"\n'},
    {"count": 0, "share": 0.5, "yes": True},
]


def fields(seq: int, prev_hash: str, **changes: Any) -> dict[str, Any]:
    return {
        "seq": seq,
        "at": f"2026-11-21T09:00:{seq % 60:02}.123456Z",
        "tenant_id": TENANT,
        "actor": {"type": "key", "id": "key_1", "role": "admin"} if seq > 1 else SYSTEM,
        "action": "webhook.create" if seq > 1 else "tenant.create",
        "target": {"type": "webhook", "id": f"whk_{seq}"},
        "details": DETAILS[(seq - 1) % len(DETAILS)],
        "request_id": None if seq == 1 else f"req_{seq}",
        "prev_hash": prev_hash,
    } | changes


SYSTEM = {"type": "system", "id": None}


def chain(length: int) -> list[Row]:
    rows: list[Row] = []
    prev_hash = GENESIS
    for seq in range(1, length + 1):
        rows.append(sealed(seq, entry_bytes(fields(seq, prev_hash))))
        prev_hash = rows[-1][2].hex()
    return rows


def sealed(seq: int, body: bytes) -> Row:
    return seq, body, sha256(body).digest()


def head_of(rows: list[Row]) -> Head:
    return Head(rows[-1][0], rows[-1][2].hex())


def check(rows: list[Row], **options: Any) -> Verification:
    return verify(iter(rows), tenant_id=TENANT, **options)


def broken(rows: list[Row], **options: Any) -> tuple[int, Reason]:
    result = check(rows, **options)
    assert not result.intact
    assert result.broken is not None
    assert result.entries == result.broken.seq - 1 == result.head.seq
    return result.broken.seq, result.broken.reason


ROWS = chain(20)
END = head_of(ROWS)

# Writing.


def test_a_body_is_the_canonical_json_of_its_members() -> None:
    entry = fields(3, GENESIS)
    assert entry_bytes(entry) == rfc8785.dumps(entry)


def test_a_hash_is_the_sha_256_of_the_body() -> None:
    assert entry_hash(b"body") == sha256(b"body").digest()


@pytest.mark.parametrize("change", [{"hash": GENESIS}, {"note": 1}])
def test_an_entry_with_another_member_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly the members"):
        entry_bytes(fields(1, GENESIS) | change)


@pytest.mark.parametrize("name", sorted(hash_chain.MEMBERS))
def test_an_entry_without_one_of_its_members_is_refused(name: str) -> None:
    entry = fields(1, GENESIS)
    del entry[name]
    with pytest.raises(ValueError, match=name):
        entry_bytes(entry)


def nested(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


@pytest.mark.parametrize("value", [1e17, 2**53, "\ud800", nested(127)], ids=str)
def test_what_could_not_be_verified_later_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        entry_bytes(fields(1, GENESIS, details={"a": value}))
    with pytest.raises(ValueError, match=r"."):
        draft(placeless(fields(1, GENESIS, details={"a": value})))


def test_a_draft_of_other_members_is_refused() -> None:
    good = placeless(fields(1, GENESIS))
    for name in good:
        with pytest.raises(ValueError, match=name):
            draft({each: good[each] for each in good if each != name})
    with pytest.raises(ValueError, match="exactly the members"):
        draft(good | {"hash": GENESIS})


def placeless(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in entry if name not in {"at", "prev_hash", "seq"}}


# Verifying what is good.


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


# Verifying what somebody touched.


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
        assert check(rows).intact
        assert check(rows, end=END).broken == Break(
            seq, Reason.OTHER_HEAD, END.hash, rows[-1][2].hex()
        )


@given(st.integers(1, 20))
def test_a_chain_rewritten_from_anywhere_fails_at_the_first_head_kept_behind_it(first: int) -> None:
    rows = ROWS[: first - 1]
    for seq in range(first, 21):
        prev_hash = rows[-1][2].hex() if rows else GENESIS
        rows.append(sealed(seq, entry_bytes(fields(seq, prev_hash, action="key.mint"))))
    assert check(rows).intact
    kept = [head_of(ROWS[:5]), head_of(ROWS[:10]), END]
    where = next(head.seq for head in kept if head.seq >= first)
    assert broken(rows, known=kept) == (where, Reason.OTHER_HEAD)


@given(st.integers(1, 19))
def test_a_deleted_entry_is_found_at_its_place(seq: int) -> None:
    rows = [row for row in ROWS if row[0] != seq]
    result = check(rows)
    assert result.broken == Break(seq, Reason.MISSING, str(seq), str(seq + 1))
    assert result.entries == seq - 1


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
def test_a_chain_cut_at_its_end_is_found_by_whoever_kept_a_later_head(length: int) -> None:
    rows = ROWS[:length]
    assert check(rows).intact
    missing = Break(length + 1, Reason.MISSING, str(length + 1), "the end of the chain")
    assert check(rows, end=END).broken == missing
    assert check(rows, known=[END]).broken == missing


def test_an_emptied_chain_is_never_intact_from_its_start() -> None:
    for options in ({}, {"end": END}, {"end": START}, {"known": [END]}):
        assert broken([], **options) == (1, Reason.MISSING)


def test_no_news_since_a_verified_head_is_no_break() -> None:
    assert check([], after=END, known=[END], end=END) == Verification(0, END, None)


def test_a_verified_head_that_differs_from_the_one_kept_is_a_break() -> None:
    result = check([], after=END, known=[Head(20, GENESIS)])
    assert result.broken == Break(20, Reason.OTHER_HEAD, GENESIS, END.hash)


def test_an_end_before_a_verified_head_is_a_break() -> None:
    assert check([], after=END, end=head_of(ROWS[:10])).broken == Break(
        11, Reason.BEYOND_END, "the end at 10", "20"
    )


@pytest.mark.parametrize("heads", [[head_of(ROWS[:9]), head_of(ROWS[:5])], [head_of(ROWS[:2])]])
def test_known_heads_out_of_order_are_the_callers_mistake(heads: list[Head]) -> None:
    with pytest.raises(ValueError, match="in the order of seq"):
        check(ROWS[3:], after=head_of(ROWS[:3]), known=heads)


def test_another_tenants_chain_is_found_at_its_first_entry() -> None:
    result = verify(ROWS, tenant_id=STRANGER)
    assert result.broken == Break(1, Reason.WRONG_TENANT, STRANGER, TENANT)


# Verifying what a forger wrote who can hash: the body itself is wrong.


def replace_last(body: Callable[[dict[str, Any]], bytes]) -> list[Row]:
    entry = json.loads(ROWS[-1][1]) | {"details": DETAILS[3]}
    return [*ROWS[:-1], sealed(20, body(entry))]


def spaced(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True).encode()


def unsorted(entry: dict[str, Any]) -> bytes:
    return json.dumps(dict(sorted(entry.items(), reverse=True)), separators=(",", ":")).encode()


def written(**changes: Any) -> Callable[[dict[str, Any]], bytes]:
    return lambda entry: canonical_json.dumps(entry | changes)


def edited(old: bytes, new: bytes) -> Callable[[dict[str, Any]], bytes]:
    def edit(entry: dict[str, Any]) -> bytes:
        body = canonical_json.dumps(entry)
        assert old in body
        return body.replace(old, new, 1)

    return edit


FORGED: list[tuple[Reason, Callable[[dict[str, Any]], bytes]]] = [
    (Reason.NOT_JSON, lambda entry: b""),
    (Reason.NOT_JSON, lambda entry: b"\xff"),
    (Reason.NOT_JSON, lambda entry: canonical_json.dumps(entry)[:-1]),
    (Reason.NOT_JSON, lambda entry: canonical_json.dumps(entry) + b"}"),
    (Reason.NOT_JSON, edited(b',"prev_hash"', b'x,"prev_hash"')),
    (Reason.NOT_JSON, edited(b'"details":{', b'"details":{}{')),
    (Reason.NOT_CANONICAL, lambda entry: canonical_json.dumps(entry) + b"\n"),
    (Reason.NOT_CANONICAL, spaced),
    (Reason.NOT_CANONICAL, unsorted),
    (Reason.NOT_CANONICAL, edited(b'"webhook.create"', b'"\\u0077ebhook.create"')),
    (Reason.NOT_CANONICAL, edited(b'"seq":20', b'"seq":20.0')),
    (Reason.NOT_CANONICAL, edited(b'"seq":20', b'"seq":2e1')),
    (Reason.NOT_CANONICAL, edited(b'"seq":20', b'"seq":20,"seq":20')),
    (Reason.NOT_CANONICAL, edited(b'"seq":20', b'"seq":19,"seq":20')),
    (Reason.NOT_CANONICAL, edited(b'"details":', b'"details":{},"details":')),
    (Reason.NOT_CANONICAL, edited(b'"prev_hash":', b'"prev_hash":"","prev_hash":')),
    (Reason.NOT_CANONICAL, edited(b'"type":"webhook"', b'"type":"webhook","id":"whk_20"')),
    (Reason.NOT_CANONICAL, edited(b'"details":{', b'"details":{"z":1,"a":1},"x":{')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"a":1.0,"event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"a":-0,"event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"z":1,"event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"event_types":1,"event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"a":9007199254740993,"event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"a":"\\ud800","event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"\\u0061":1,"event_types":')),
    (Reason.NOT_CANONICAL, lambda entry: b"[" * 200 + b"]" * 200),
    (Reason.NOT_AN_ENTRY, lambda entry: b"null"),
    (Reason.NOT_AN_ENTRY, lambda entry: b"[]"),
    (Reason.NOT_AN_ENTRY, lambda entry: b'"' + b"x" * 100_000 + b'"'),
    (Reason.NOT_AN_ENTRY, written(hash=GENESIS)),
    (Reason.NOT_AN_ENTRY, written(zone="extra")),
    (Reason.NOT_AN_ENTRY, lambda entry: canonical_json.dumps({"details": entry})),
    (Reason.WRONG_SEQ, written(seq=19)),
    (Reason.WRONG_SEQ, written(seq="20")),
    (Reason.WRONG_SEQ, written(seq=None)),
    (Reason.WRONG_SEQ, written(seq=19, details={"seq": 20})),
    (Reason.WRONG_SEQ, written(seq=19, target={"id": "x", "seq": 20, "type": "y"})),
    (Reason.WRONG_SEQ, written(seq=19, request_id='r","seq":20,"target":{}')),
    (Reason.WRONG_TENANT, written(tenant_id=STRANGER)),
    (Reason.WRONG_TENANT, written(tenant_id=None)),
    (Reason.WRONG_TENANT, written(tenant_id=STRANGER, details={"tenant_id": TENANT})),
    (Reason.WRONG_TENANT, written(tenant_id="x" * 100_000)),
    (Reason.BAD_LINK, written(prev_hash=GENESIS)),
    (Reason.BAD_LINK, written(prev_hash=None)),
    (Reason.BAD_LINK, written(prev_hash=ROWS[-2][2].hex().upper())),
    (
        Reason.BAD_LINK,
        written(
            prev_hash=GENESIS,
            details={"a": 1, "prev_hash": ROWS[-2][2].hex(), "request_id": None, "seq": 20},
        ),
    ),
    (
        Reason.BAD_LINK,
        written(
            prev_hash=GENESIS,
            target={"id": None, "prev_hash": ROWS[-2][2].hex(), "request_id": None, "type": "x"},
        ),
    ),
    (
        Reason.BAD_LINK,
        written(
            prev_hash=GENESIS,
            request_id=f'","prev_hash":"{ROWS[-2][2].hex()}","request_id":"r","seq":20',
        ),
    ),
]


@pytest.mark.parametrize(("reason", "forge"), FORGED)
def test_a_forged_body_is_found_though_its_hash_is_right(
    reason: Reason, forge: Callable[[dict[str, Any]], bytes]
) -> None:
    result = check(replace_last(forge))
    assert result.broken is not None
    assert (result.broken.seq, result.broken.reason) == (20, reason)
    assert len(result.broken.expected) <= 201
    assert len(result.broken.found) <= 201


def test_true_is_not_number_one() -> None:
    row = sealed(1, canonical_json.dumps(fields(1, GENESIS) | {"seq": True}))
    assert check([row]).broken == Break(1, Reason.WRONG_SEQ, "1", "True")


# The quick comparison may only ever agree with the full reading.

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


@settings(max_examples=800)
@given(entries, st.data())
def test_the_quick_comparison_never_passes_what_a_full_reading_refuses(
    entry: dict[str, Any], data: st.DataObject
) -> None:
    body = canonical_json.dumps(entry)
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(body)))
        stop = data.draw(st.integers(start, min(start + 8, len(body))))
        splice = data.draw(st.sampled_from([b"", b" ", b'"', b"}", b",", b"1", body[:start]]))
        body = body[:start] + splice + body[stop:]
    quick = plain_entry.matches(body, 1, GENESIS.encode(), canonical_json.dumps(TENANT))
    good = is_good_by_a_full_reading(body)
    assert check([sealed(1, body)]).intact == good
    assert good or not quick


def is_good_by_a_full_reading(body: bytes) -> bool:
    try:
        entry = canonical_json.parse(body)
    except ValueError:
        return False
    return (
        isinstance(entry, dict)
        and rfc8785.dumps(entry) == body
        and entry.keys() == fields(1, GENESIS).keys()
        and entry["seq"] == 1
        and type(entry["seq"]) is int
        and entry["prev_hash"] == GENESIS
        and entry["tenant_id"] == TENANT
    )


def test_the_quick_comparison_knows_every_usual_entry() -> None:
    tenant = canonical_json.dumps(TENANT)
    for seq, body, _ in ROWS:
        prev_hash = ROWS[seq - 2][2].hex() if seq > 1 else GENESIS
        assert plain_entry.matches(body, seq, prev_hash.encode(), tenant)


def test_details_of_any_depth_that_can_be_written_can_be_verified() -> None:
    body = entry_bytes(fields(1, GENESIS, details={"a": nested(126)}))
    assert check([sealed(1, body)]).intact
    deeper = body.replace(b"[]", b"[[]]")
    assert broken([sealed(1, deeper)]) == (1, Reason.NOT_CANONICAL)
