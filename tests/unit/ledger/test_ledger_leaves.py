"""What leaves say, and that nothing else is a leaf."""

import json
from hashlib import sha256

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from app.ledger import leaves, tiles
from app.ledger.leaves import AuditHead, Leaf, LogSuccessor, Record, SessionStatement
from app.ledger.notes import Checkpoint

HASHES = st.binary(min_size=32, max_size=32)
AT = "2026-11-21T09:00:00.123456Z"
LEAVES = st.one_of(
    st.builds(Record, HASHES),
    st.builds(SessionStatement, HASHES),
    st.builds(AuditHead, HASHES, st.integers(1, 2**53 - 1), HASHES, st.just(AT)),
    st.builds(
        LogSuccessor,
        st.builds(Checkpoint, st.just("log.example/é"), st.integers(1, 2**53 - 1), HASHES),
    ),
)


def written(members: dict[str, str | int]) -> bytes:
    """The bytes by the reference library."""
    return rfc8785.dumps({**members})


def test_leaves_are_these_bytes() -> None:
    one, two = sha256(b"one").digest(), sha256(b"two").digest()
    assert Record(one).data == b'{"bundle_sha256":"%s","type":"record"}' % one.hex().encode()
    sealed = b'{"statement_sha256":"%s","type":"session"}' % one.hex().encode()
    assert SessionStatement(one).data == sealed
    head: dict[str, str | int] = {
        "type": "audit-head",
        "chain": one.hex(),
        "seq": 7,
        "hash": two.hex(),
        "at": AT,
    }
    assert AuditHead(one, 7, two, AT).data == written(head)
    successor: dict[str, str | int] = {
        "type": "log-successor",
        "origin": "old.example",
        "size": 9,
        "root": one.hex(),
    }
    assert LogSuccessor(Checkpoint("old.example", 9, one)).data == written(successor)


def test_a_chain_is_named_by_its_salt_alone() -> None:
    salt = bytes(range(32))
    assert leaves.chain_name(salt) == sha256(b"audit-chain:" + salt).digest()
    with pytest.raises(ValueError, match="32 bytes"):
        leaves.chain_name(salt[:-1])


@given(LEAVES)
def test_every_leaf_is_read_back_and_fits_an_entry(leaf: Leaf) -> None:
    assert leaves.parse(leaf.data) == leaf
    assert tiles.parse_entries(tiles.encode_entries([leaf.data])) == [leaf.data]


HASH = "ab" * 32
OLD = {"type": "log-successor", "origin": "o", "size": 9, "root": HASH}
HEAD = {"type": "audit-head", "chain": HASH, "seq": 1, "hash": HASH, "at": AT}


@pytest.mark.parametrize(
    "members",
    [
        None,
        [],
        "record",
        {},
        {"bundle_sha256": HASH},
        {"type": "other", "bundle_sha256": HASH},
        {"type": ["record"], "bundle_sha256": HASH},
        {"type": "record"},
        {"type": "record", "bundle_sha256": HASH.upper()},
        {"type": "record", "bundle_sha256": HASH[:-2]},
        {"type": "record", "bundle_sha256": HASH[:-1] + "g"},
        {"type": "record", "bundle_sha256": None},
        {"type": "record", "bundle_sha256": HASH, "tenant_id": "ten_1"},
        {"type": "session", "statement_sha256": HASH[:-2]},
        {"type": "session", "bundle_sha256": HASH},
        {**HEAD, "seq": 0},
        {**HEAD, "seq": True},
        {**HEAD, "seq": "1"},
        {**HEAD, "seq": 1.5},
        {**HEAD, "at": "2026-11-21T09:00:00Z"},
        {**HEAD, "at": AT + "\n"},
        {**HEAD, "at": 5},
        {**HEAD, "chain": "ten_1"},
        {**OLD, "origin": 1},
        {**OLD, "origin": ""},
        {**OLD, "size": True},
        {**OLD, "size": -1},
        {**OLD, "size": 0},
        {**OLD, "root": HASH + "00"},
    ],
)
def test_nothing_else_is_a_leaf(members: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        leaves.parse(json.dumps(members, sort_keys=True, separators=(",", ":")).encode())


def test_a_leaf_is_canonical() -> None:
    data = Record(bytes(32)).data
    for odd in (data + b"\n", data.replace(b":", b": "), data.replace(b"record", b"\\u0072ecord")):
        with pytest.raises(ValueError, match=r".+"):
            leaves.parse(odd)


def test_what_could_not_be_read_back_is_never_written() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Record(bytes(31))
    with pytest.raises(ValueError, match="numbered from 1"):
        AuditHead(bytes(32), 0, bytes(32), AT)
    with pytest.raises(ValueError, match="UTC"):
        AuditHead(bytes(32), 1, bytes(32), "2026-11-21T09:00:00.123456+00:00")
    with pytest.raises(ValueError, match="integer"):
        LogSuccessor(Checkpoint("o", 2**53, bytes(32))).data  # noqa: B018
