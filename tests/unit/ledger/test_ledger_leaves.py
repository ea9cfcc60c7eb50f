"""What leaves say, and that nothing else is a leaf."""

import json
from hashlib import sha256

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from app.ledger import leaves
from app.ledger.leaves import AuditHead
from app.ledger.notes import Checkpoint

HASHES = st.binary(min_size=32, max_size=32)
AT = "2026-11-21T09:00:00.123456Z"
ONE, TWO = sha256(b"one").digest(), sha256(b"two").digest()


def written(members: dict[str, str | int]) -> bytes:
    """The bytes by the reference library."""
    return rfc8785.dumps({**members})


def test_leaves_are_these_bytes() -> None:
    assert leaves.record(ONE) == b'{"bundle_sha256":"%s","type":"record"}' % ONE.hex().encode()
    sealed = b'{"statement_sha256":"%s","type":"session"}' % ONE.hex().encode()
    assert leaves.session(ONE) == sealed
    head: dict[str, str | int] = {"type": "audit-head", "chain": ONE.hex(), "seq": 7}
    assert AuditHead(ONE, 7, TWO, AT).data == written({**head, "hash": TWO.hex(), "at": AT})
    old = Checkpoint("old.example", 9, ONE)
    successor: dict[str, str | int] = {
        "type": "log-successor",
        "origin": "old.example",
        "size": 9,
        "root": ONE.hex(),
    }
    assert leaves.successor(old) == written(successor)
    assert all(map(leaves.may_wait, (leaves.record(ONE), leaves.session(ONE))))
    assert not leaves.may_wait(leaves.successor(old))


def test_a_chain_is_named_by_its_salt_alone() -> None:
    salt = bytes(range(32))
    assert leaves.chain_name(salt) == sha256(b"audit-chain:" + salt).digest()
    with pytest.raises(ValueError, match="32 bytes"):
        leaves.chain_name(salt[:-1])


@given(st.builds(AuditHead, HASHES, st.integers(1, 2**53 - 1), HASHES, st.just(AT)))
def test_every_head_is_read_back(head: AuditHead) -> None:
    assert leaves.audit_head(head.data) == head
    assert leaves.may_wait(head.data)


HASH = "ab" * 32
HEAD = {"type": "audit-head", "chain": HASH, "seq": 1, "hash": HASH, "at": AT}


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"bundle_sha256": HASH},
        {"type": "other", "bundle_sha256": HASH},
        {"type": "record", "bundle_sha256": HASH.upper()},
        {"type": "record", "bundle_sha256": HASH[:-2]},
        {"type": "record", "bundle_sha256": HASH[:-1] + "g"},
        {"type": "record", "bundle_sha256": None},
        {"type": "record", "bundle_sha256": HASH, "tenant_id": "ten_1"},
        {"type": "session", "bundle_sha256": HASH},
        {**HEAD, "seq": 0},
        {**HEAD, "seq": 2**53},
        {**HEAD, "seq": True},
        {**HEAD, "seq": "1"},
        {**HEAD, "seq": 1.5},
        {**HEAD, "at": "2026-11-21T09:00:00Z"},
        {**HEAD, "at": AT + "\n"},
        {**HEAD, "chain": "ten_1"},
    ],
)
def test_nothing_else_is_a_leaf(members: dict[str, str | int]) -> None:
    data = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    assert not leaves.may_wait(data)


def test_a_leaf_is_canonical() -> None:
    data = leaves.record(bytes(32))
    for odd in (data + b"\n", data.replace(b":", b": "), data.replace(b"record", b"\\u0072ecord")):
        assert not leaves.may_wait(odd)


def test_what_is_no_hash_is_never_written() -> None:
    for make in (leaves.record, leaves.session):
        with pytest.raises(ValueError, match="32 bytes"):
            make(bytes(31))
    with pytest.raises(ValueError, match="32 bytes"):
        AuditHead(bytes(31), 1, bytes(32), AT).data  # noqa: B018
