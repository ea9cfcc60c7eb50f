"""What `verify.py` reads by itself, held to what the service reads: JSON, policies and notes."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.evidence import verify
from app.ledger import merkle
from app.ledger.notes import Malformed, VerifierKey
from app.ledger.policy import Policy
from app.lib import canonical_json
from tests.unit.evidence import records
from tests.unit.verify import packs
from tests.unit.verify.policies import NESTED, NO_POLICIES


@given(records.values)
def test_the_verifier_reads_what_the_service_writes(value: object) -> None:
    data = canonical_json.dumps(value)
    assert canonical_json.dumps(verify.read_json(data)) == data


WHOLE = (
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(records.characters)
)
NAMES = st.text(st.characters(max_codepoint=127))


@given(st.recursive(WHOLE, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner)))
def test_where_names_are_ascii_and_numbers_whole_it_knows_the_canonical_form(value: object) -> None:
    data = canonical_json.dumps(value)
    assert verify.write_json(verify.read_canonical(data)) == data
    with pytest.raises(verify.Invalid):
        verify.read_canonical(data + b" ")


JSON = st.text('[]{}",:\\u0019eE+-.tfn ', max_size=12).map(str.encode) | st.binary(max_size=8)


@settings(max_examples=300)
@given(JSON)
def test_json_that_the_service_refuses_the_verifier_refuses(data: bytes) -> None:
    try:
        expected = canonical_json.dumps(canonical_json.parse(data))
    except ValueError:
        expected = None
    try:
        found = canonical_json.dumps(verify.read_json(data))
    except verify.Invalid:
        found = None
    assert found == expected


@pytest.mark.parametrize(
    "data",
    [
        b"9007199254740991",
        b"9007199254740992",
        b"-9007199254740991",
        b"-9007199254740992",
        b"9007199254740992.0",
        b"1e16",
        b"1e20",
        b"1e21",
        b"1e308",
        b"1e309",
        b"-0",
        b"-0.0",
        b"0.1e-6",
        b"1" * 400,
        b'"\\ud83d\\ude00"',
        b'"\\ud83d"',
        b'{"\\u0061":1,"a":2}',
        b"\xef\xbb\xbf1",
        b"NaN",
        b"-Infinity",
        b"'a'",
        b'"\t"',
        b"[1,]",
        b"",
    ],
)
def test_the_edges_of_json_are_the_same(data: bytes) -> None:
    test_json_that_the_service_refuses_the_verifier_refuses.hypothesis.inner_test(data)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", NO_POLICIES)
def test_what_is_no_policy_here_is_none_there(text: str) -> None:
    with pytest.raises(verify.Invalid):
        verify.Policy(text.encode())


def test_a_quorum_is_the_same_for_both() -> None:
    ours, theirs = Policy.parse(NESTED.encode()), verify.Policy(NESTED.encode())
    keys = {each.name: each.key for each in ours.witnesses}
    assert {str(key.name) for key in theirs.witnesses.values()} == {
        key.name for key in keys.values()
    }
    for count in range(len(keys) + 1):
        for names in combinations(keys, count):
            met = ours.is_met_by(keys[name] for name in names)
            assert theirs.is_met_by(list(names)) is met


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a+b",
        "a+00000000+",
        "a+00000000+AQAA",
        "a+00000000+AA==",
        "a b+00000000+AAAA",
        str(packs.LOG.verifier_key)[:-1],
        str(packs.LOG.verifier_key).upper(),
        str(packs.LOG.verifier_key) + "\n",
        "\u2028" + str(packs.LOG.verifier_key),
    ],
)
def test_what_is_no_verifier_key_is_none_for_both(text: str) -> None:
    with pytest.raises(Malformed):
        VerifierKey.parse(text)
    with pytest.raises(verify.Invalid):
        verify.read_key(text)


def test_inclusion_is_the_same_for_both() -> None:
    for size in range(1, 18):
        hashes = [merkle.leaf_hash(b"%d" % number) for number in range(size)]
        root = merkle.root(hashes)
        for index in range(size):

            def read(level: int, number: int, hashes: list[bytes] = hashes) -> bytes:
                return merkle.root(hashes[number << level : (number + 1) << level])

            path = merkle.inclusion_proof(index, size, read)
            leaf = b"%d" % index
            assert verify.included(leaf, index, size, path, root)
            assert not verify.included(leaf, index, size, [*path, root], root)
            assert not verify.included(leaf + b" ", index, size, path, root)
            assert not verify.included(leaf, index + 1, size, path, root)
            assert not path or not verify.included(leaf, index, size, path[:-1], root)
            assert not path or not verify.included(leaf, index, size, path[::-1] + path, root)
