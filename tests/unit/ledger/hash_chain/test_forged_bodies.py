"""Bodies by a forger who computes the hashes anew are found."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.ledger.hash_chain import GENESIS, Break, Reason
from app.lib import canonical_json
from tests.unit.ledger.hash_chain.chains import (
    DETAILS,
    ROWS,
    STRANGER,
    TENANT,
    Row,
    check,
    fields,
    sealed,
)


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
    (Reason.NOT_JSON, edited(b',"prev_hash"', b'x,"prev_hash"')),
    (Reason.NOT_CANONICAL, lambda entry: canonical_json.dumps(entry) + b"\n"),
    (Reason.NOT_CANONICAL, spaced),
    (Reason.NOT_CANONICAL, unsorted),
    (Reason.NOT_CANONICAL, edited(b'"webhook.create"', b'"\\u0077ebhook.create"')),
    (Reason.NOT_CANONICAL, edited(b'"seq":20', b'"seq":20.0')),
    (Reason.NOT_CANONICAL, edited(b'"seq":20', b'"seq":20,"seq":20')),
    (Reason.NOT_CANONICAL, edited(b'"details":', b'"details":{},"details":')),
    (Reason.NOT_CANONICAL, edited(b'"details":{', b'"details":{"z":1,"a":1},"x":{')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"a":1.0,"event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"z":1,"event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"a":9007199254740993,"event_types":')),
    (Reason.NOT_CANONICAL, edited(b'"event_types":', b'"a":"\\ud800","event_types":')),
    (Reason.NOT_CANONICAL, lambda entry: b"[" * 200 + b"]" * 200),
    (Reason.NOT_AN_ENTRY, lambda entry: b"null"),
    (Reason.NOT_AN_ENTRY, lambda entry: b'"' + b"x" * 100_000 + b'"'),
    (Reason.NOT_AN_ENTRY, written(hash=GENESIS)),
    (Reason.NOT_AN_ENTRY, lambda entry: canonical_json.dumps({"details": entry})),
    (Reason.WRONG_SEQ, written(seq=19)),
    (Reason.WRONG_SEQ, written(seq="20")),
    (Reason.WRONG_SEQ, written(seq=19, target={"id": "x", "seq": 20, "type": "y"})),
    (Reason.WRONG_SEQ, written(seq=19, request_id='r","seq":20,"target":{}')),
    (Reason.WRONG_TENANT, written(tenant_id=STRANGER)),
    (Reason.WRONG_TENANT, written(tenant_id=STRANGER, details={"tenant_id": TENANT})),
    (Reason.WRONG_TENANT, written(tenant_id="x" * 100_000)),
    (Reason.BAD_LINK, written(prev_hash=GENESIS)),
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
            request_id=f'","prev_hash":"{ROWS[-2][2].hex()}","request_id":"r","seq":20',
        ),
    ),
]


@pytest.mark.parametrize(("reason", "forge"), FORGED)
def test_a_forged_body_is_found_though_its_hash_is_right(
    reason: Reason, forge: Callable[[dict[str, Any]], bytes]
) -> None:
    broken = check(replace_last(forge))
    assert broken is not None
    assert (broken.seq, broken.reason) == (20, reason)
    assert len(broken.expected) <= 201
    assert len(broken.found) <= 201


def test_true_is_not_number_one() -> None:
    row = sealed(1, canonical_json.dumps(fields(1, GENESIS) | {"seq": True}))
    assert check([row]) == Break(1, Reason.WRONG_SEQ, "1", "True")
