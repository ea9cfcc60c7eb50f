"""Ed25519 keys against RFC 8032's own vectors, and as OpenSSL and a JWK reader see them."""

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from app.lib.crypto.signing import SIGNATURE_BYTES, PublicKey, SigningKey

# RFC 8032 section 7.1, test 3.
SEED = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
PUBLIC = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
MESSAGE = bytes.fromhex("af82")
SIGNATURE = bytes.fromhex(
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
)
DER_BEFORE_THE_POINT = bytes.fromhex("302a300506032b6570032100")  # RFC 8410 section 4


def test_a_key_signs_as_the_rfc_s_vector_does() -> None:
    key = SigningKey(SEED)
    assert key.public.raw == PUBLIC
    assert key.sign(MESSAGE) == SIGNATURE
    assert key.public.verifies(SIGNATURE, MESSAGE)


@pytest.mark.parametrize("place", [0, 31, 32, SIGNATURE_BYTES - 1])
def test_a_signature_with_one_bit_changed_verifies_nothing(place: int) -> None:
    forged = bytearray(SIGNATURE)
    forged[place] ^= 1
    assert not PublicKey(PUBLIC).verifies(bytes(forged), MESSAGE)


@pytest.mark.parametrize("signature", [b"", SIGNATURE[:-1], SIGNATURE + b"\0", bytes(64)])
def test_what_is_no_signature_verifies_nothing(signature: bytes) -> None:
    assert not PublicKey(PUBLIC).verifies(signature, MESSAGE)


def test_a_signature_is_for_its_message_alone() -> None:
    assert not PublicKey(PUBLIC).verifies(SIGNATURE, MESSAGE + b"\n")


def test_a_key_s_id_is_the_beginning_of_the_hash_of_its_der() -> None:
    expected = hashlib.sha256(DER_BEFORE_THE_POINT + PUBLIC).hexdigest()[:16]
    assert PublicKey(PUBLIC).id == expected


def test_a_public_key_s_jwk_has_what_a_verifier_needs_and_nothing_secret() -> None:
    key = SigningKey(SEED)
    jwk = key.public.jwk
    assert base64.urlsafe_b64decode(jwk["x"] + "=") == PUBLIC
    assert {**jwk, "x": "", "kid": ""} == {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": "",
        "kid": "",
        "use": "sig",
        "alg": "EdDSA",
    }
    assert jwk["kid"] == key.public.id


def test_the_pem_of_a_public_key_is_read_by_others() -> None:
    key = PublicKey(PUBLIC)
    read = load_pem_public_key(key.pem)
    assert isinstance(read, Ed25519PublicKey)
    assert read.public_bytes_raw() == PUBLIC


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SigningKey(bytes(length))
    with pytest.raises(ValueError, match="32 bytes"):
        PublicKey(bytes(length))


def test_a_key_comes_back_from_its_seed_and_does_not_show_it() -> None:
    key = SigningKey.generate()
    again = SigningKey(key.seed)
    assert again.public == key.public
    assert SigningKey.generate().public != key.public
    assert repr(key) == f"SigningKey({key.public.id})"
