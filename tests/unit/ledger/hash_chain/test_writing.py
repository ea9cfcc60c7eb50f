"""Entries are written as canonical JSON with exactly their members."""

from hashlib import sha256
from typing import Any

import pytest
import rfc8785

from app.ledger import hash_chain
from app.ledger.hash_chain import GENESIS, draft, entry_bytes, entry_hash
from tests.unit.ledger.hash_chain.chains import fields, nested, placeless


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
