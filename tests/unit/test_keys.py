"""Texts of keys, signatures, and what is sealed at rest."""

import base64
import copy
import hashlib
import pickle
import re
from collections.abc import Callable
from hashlib import sha256
from zlib import crc32

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from app.lib.crypto import api_keys
from app.lib.crypto.sealing import ALIKE_IN_NONE, KEY_NAMED_IN, CannotOpen, MasterKeys, key_of
from app.lib.crypto.signing import PublicKey, SigningKey

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def checksum_of(text: str) -> int:
    return sum(DIGITS.index(digit) * 62**place for place, digit in enumerate(reversed(text)))


def test_a_new_key_has_the_form_that_scanners_look_for() -> None:
    assert re.fullmatch(r"svc_[0-9A-Za-z]{46}", api_keys.new())


def test_its_last_six_characters_are_the_crc_32_of_the_rest() -> None:
    for _ in range(100):
        key = api_keys.new()
        assert checksum_of(key[-6:]) == crc32(key[:-6].encode())


def test_any_single_change_makes_a_key_ill_formed() -> None:
    key = api_keys.new()
    for place, character in enumerate(key):
        for other in "0Az_é":
            if other != character:
                assert not api_keys.well_formed(key[:place] + other + key[place + 1 :])


@pytest.mark.parametrize(
    "change",
    [
        lambda key: "",
        lambda key: key[:-1],
        lambda key: key + "0",
        lambda key: key + "\n",
        lambda key: " " + key,
        lambda key: key.upper(),
        lambda key: "sk_" + key[3:],
        lambda key: "svc_" + "٣" * 46,
        lambda key: "svc_" + "\ud800" * 46,
        lambda key: "svc_" + "\x00" * 46,
        lambda key: key * 100_000,
    ],
)
def test_what_is_no_key_is_ill_formed(change: Callable[[str], str]) -> None:
    assert not api_keys.well_formed(change(api_keys.new()))


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_asked_about_and_looked_up(text: str) -> None:
    assert not api_keys.well_formed(text)
    assert len(api_keys.digest(text)) == 32


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


@pytest.mark.parametrize("place", [0, 31, 32, 63])
def test_a_signature_with_one_bit_changed_verifies_nothing(place: int) -> None:
    forged = bytearray(SIGNATURE)
    forged[place] ^= 1
    assert not PublicKey(PUBLIC).verifies(bytes(forged), MESSAGE)


def test_a_key_s_id_is_the_beginning_of_the_hash_of_its_der() -> None:
    expected = hashlib.sha256(DER_BEFORE_THE_POINT + PUBLIC).hexdigest()[:16]
    assert PublicKey(PUBLIC).id == expected


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


OLD = base64.b64encode(bytes(range(32, 64))).decode()
NEW = base64.b64encode(bytes(range(32))).decode()
ROW = "webhooks/ten_1/whk_1/secret"


@given(st.binary(max_size=300), st.text(max_size=50))
def test_what_is_sealed_opens_for_its_own_row(plaintext: bytes, identity: str) -> None:
    keys = MasterKeys.parse(NEW)
    assert keys.open(keys.seal(plaintext, identity), identity) == plaintext


def test_the_sealed_bytes_are_as_documented() -> None:
    sealed = MasterKeys.parse(NEW).seal(b"secret", ROW)
    key = base64.urlsafe_b64decode(NEW)
    version, key_id, nonce, ciphertext = sealed[:1], sealed[1:5], sealed[5:17], sealed[17:]
    assert version == b"\x01"
    assert key_id.hex() == sha256(key).hexdigest()[:8]
    assert AESGCM(key).decrypt(nonce, ciphertext, version + key_id + ROW.encode()) == b"secret"


@pytest.mark.parametrize("identity", ["", "webhooks/ten_1/whk_2/secret", ROW + " ", ROW.upper()])
def test_it_does_not_open_for_another_row(identity: str) -> None:
    keys = MasterKeys.parse(NEW)
    with pytest.raises(CannotOpen, match="another row"):
        keys.open(keys.seal(b"secret", ROW), identity)


def test_every_flipped_bit_is_found() -> None:
    keys = MasterKeys.parse(f"{NEW},{OLD}")
    sealed = keys.seal(b"secret", ROW)
    for bit in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CannotOpen):
            keys.open(bytes(changed), ROW)


def test_every_truncation_is_found() -> None:
    keys = MasterKeys.parse(NEW)
    sealed = keys.seal(b"secret", ROW)
    for length in range(len(sealed)):
        with pytest.raises(CannotOpen):
            keys.open(sealed[:length], ROW)


def test_an_unknown_key_is_named_by_its_id_and_not_shown() -> None:
    sealed = MasterKeys.parse(OLD).seal(b"secret", ROW)
    key_id = sha256(base64.urlsafe_b64decode(OLD)).hexdigest()[:8]
    with pytest.raises(CannotOpen, match=key_id) as refusal:
        MasterKeys.parse(NEW).open(sealed, ROW)
    assert OLD not in str(refusal.value)


def test_after_a_rotation_old_seals_open_and_are_sealed_anew() -> None:
    sealed = MasterKeys.parse(OLD).seal(b"secret", ROW)
    rotated = MasterKeys.parse(f"{NEW},{OLD}")
    again = rotated.reseal(sealed, ROW)
    assert [key_of(each) for each in (again, sealed)] == list(rotated.ids)
    assert again.startswith(rotated.header)
    assert MasterKeys.parse(NEW).open(again, ROW) == b"secret"


def test_the_key_is_named_in_the_first_bytes_and_no_two_seals_begin_alike() -> None:
    keys = MasterKeys.parse(NEW)
    seals = [keys.seal(b"secret", ROW) for _ in range(100)]
    assert {key_of(each[:KEY_NAMED_IN]) for each in seals} == set(keys.ids)
    assert len({each[:ALIKE_IN_NONE] for each in seals}) == 100


@pytest.mark.parametrize(
    "write",
    [
        lambda key: base64.b64encode(key).decode(),
        lambda key: base64.urlsafe_b64encode(key).decode(),
        lambda key: base64.b64encode(key).decode().rstrip("="),
        lambda key: f"  {base64.b64encode(key).decode()}\n",
        lambda key: key.hex(),
        lambda key: f" {key.hex().upper()}\n",
    ],
    ids=["base64", "base64url", "unpadded", "white space around", "hex", "upper case"],
)
def test_a_key_may_be_written_in_either_base64_or_in_hex(write: Callable[[bytes], str]) -> None:
    key = bytes(range(240, 256)) * 2
    sealed = MasterKeys([key]).seal(b"secret", ROW)
    assert MasterKeys.parse(write(key)).open(sealed, ROW) == b"secret"


def test_of_a_longer_secret_that_a_platform_generated_the_hash_is_the_key() -> None:
    generated = "a1" * 64
    sealed = MasterKeys.parse(generated).seal(b"secret", ROW)
    assert MasterKeys([sha256(bytes.fromhex(generated)).digest()]).open(sealed, ROW) == b"secret"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Master key 1"),
        ("hunter2", "Master key 1"),
        (f"{NEW},", "Master key 2"),
        (f"{NEW},{OLD[:-8]}", "Master key 2"),
        (f"{NEW} {OLD}", "Master key 1"),
        (f"{NEW[:20]} {NEW[20:]}", "Master key 1"),
        (f"{NEW},{OLD},{NEW}", "twice"),
        (base64.b64encode(bytes(33)).decode(), "Master key 1"),
        (base64.b64encode(bytes(16)).decode(), "Master key 1"),
        ("é" * 43, "Master key 1"),
        ("ab" * 31, "Master key 1"),
        ("ab" * 32 + "a", "Master key 1"),
    ],
)
def test_a_bad_setting_says_which_entry_and_does_not_quote_it(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refusal:
        MasterKeys.parse(text)
    for secret in filter(None, [text, NEW, OLD, "hunter2"]):
        assert secret not in str(refusal.value)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


def test_nothing_that_prints_keys_prints_a_key() -> None:
    keys = MasterKeys.parse(f"{NEW},{OLD}")
    raw = base64.urlsafe_b64decode(NEW)
    for shown in (repr(keys), str(keys), f"{keys}", repr(vars(keys))):
        assert NEW not in shown
        assert repr(raw)[2:-1] not in shown
        assert raw.hex() not in shown


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_the_keys_cannot_leave_the_process_by_accident(
    duplicate: Callable[[object], object],
) -> None:
    with pytest.raises(TypeError):
        duplicate(MasterKeys.parse(NEW))
