"""The quick comparison agrees with the full reading of an entry."""

from typing import Any

import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ledger import plain_entry
from app.ledger.hash_chain import GENESIS, Reason, draft, entry_bytes
from app.lib import canonical_json
from tests.unit.ledger.hash_chain.chains import (
    END,
    ROWS,
    STRANGER,
    SYSTEM,
    TENANT,
    broken,
    check,
    fields,
    nested,
    placeless,
    sealed,
)

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
    assert (check([sealed(1, body)]) is None) == good
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
    assert check([sealed(1, body)]) is None
    deeper = body.replace(b"[]", b"[[]]")
    assert broken([sealed(1, deeper)]) == (1, Reason.NOT_CANONICAL)
