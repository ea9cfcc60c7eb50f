"""C2SP tlog-policy: read as it is written, and no other way."""

import pytest

from app.ledger.notes import COSIGNATURE, Malformed, Note, VerifierKey
from app.ledger.policy import Policy
from tests.unit.verify import packs
from tests.unit.verify.policies import NESTED, NO_POLICIES, OTHERS, X1, X2


def parsed(text: str) -> Policy:
    return Policy.parse(text.encode())


def test_a_policy_is_read_with_its_urls_and_groups() -> None:
    policy = parsed(NESTED)
    assert [(each.name, each.url) for each in policy.witnesses] == [
        ("X1", "https://w1.example/submit"),
        ("X2", None),
        ("X3", None),
        ("Y1", None),
    ]
    assert [(each.name, each.threshold) for each in policy.groups] == [("X", 2), ("all-of-them", 2)]


@pytest.mark.parametrize(
    ("by", "met"),
    [([], False), ([1, 2], False), ([1, 4], False), ([1, 3, 4], True), ([1, 2, 3, 4], True)],
)
def test_the_quorum_counts_each_group(by: list[int], met: bool) -> None:
    policy = parsed(NESTED)
    note = Note.parse(packs.evidence().checkpoint)
    # A witness twice, and one that nobody asked, count for nothing.
    lines = [packs.cosign(number, note.text, 5 + again) for number in by for again in (0, 1)]
    note = note.with_signatures([*lines, packs.cosign(77, note.text)])
    found = note.signed_by(each.key for each in policy.witnesses)
    assert sorted(each.key.name for each in found) == [f"witness.example/w{each}" for each in by]
    assert policy.is_met_by(each.key for each in found) is met


def test_none_is_a_quorum_that_asks_for_nothing() -> None:
    assert parsed("quorum none\n").is_met_by([])
    assert parsed(f"witness any-name {X1}\nquorum any-name\n").is_met_by([packs.witness_key(1)])


def test_lines_with_keys_of_other_types_are_read_and_told_of() -> None:
    policy = parsed(OTHERS)
    assert [each.name for each in policy.witnesses] == ["e", "m", "X1"]
    assert [each.partition(":")[0] for each in policy.unchecked] == [
        "line 3",
        "line 5",
    ]
    assert policy.unchecked[0].endswith("log ecdsa.example has a key of the type 02")
    assert policy.is_met_by([packs.witness_key(1)])
    assert parsed(NESTED).unchecked == ()


@pytest.mark.parametrize("text", NO_POLICIES)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parsed(text)


def test_a_policy_has_its_limits() -> None:
    keys = [
        VerifierKey.ed25519("w", bytes([number // 256, number % 256]) + bytes(30), COSIGNATURE)
        for number in range(257)
    ]
    lines = [f"witness w{number} {key}\n" for number, key in enumerate(keys)]
    assert len(parsed("".join(lines[:256]) + "quorum none\n").witnesses) == 256
    with pytest.raises(Malformed):
        parsed("".join(lines) + "quorum none\n")
    with pytest.raises(Malformed):
        parsed("#" * 262_144 + "\nquorum none\n")


def test_a_name_is_octets() -> None:
    kelvin, letter = "\u212a".encode(), b"K"
    first, second = f" {X1}\n".encode(), f" {X2}\n".encode()
    odd = b"\xff\xfe"
    data = b"witness " + kelvin + first + b"witness " + letter + second + b"quorum " + kelvin
    assert Policy.parse(data + b"\n").quorum == "\u212a"
    assert Policy.parse(b"witness " + odd + first + b"quorum " + odd + b"\n").witnesses
    # A space that only Unicode knows separates nothing.
    with pytest.raises(Malformed):
        Policy.parse("quorum\u00a0none\n".encode())
