"""Sealing at rest: what opens, what does not, and what never shows."""

import base64
import copy
import pickle
from collections.abc import Callable
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from app.lib.crypto.sealing import ALIKE_IN_NONE, KEY_NAMED_IN, CannotOpen, MasterKeys, key_of

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


def test_the_same_secret_is_sealed_differently_each_time() -> None:
    keys = MasterKeys.parse(NEW)
    assert len({keys.seal(b"secret", ROW) for _ in range(100)}) == 100


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


def test_appended_bytes_are_found() -> None:
    keys = MasterKeys.parse(NEW)
    with pytest.raises(CannotOpen):
        keys.open(keys.seal(b"secret", ROW) + b"\x00", ROW)


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


def test_what_does_not_open_is_not_sealed_anew() -> None:
    sealed = MasterKeys.parse(OLD).seal(b"secret", ROW)
    for keys, identity in ((NEW, ROW), (f"{NEW},{OLD}", "webhooks/ten_1/whk_2/secret")):
        with pytest.raises(CannotOpen):
            MasterKeys.parse(keys).reseal(sealed, identity)


def test_the_key_is_named_in_the_first_bytes_and_no_two_seals_begin_alike() -> None:
    keys = MasterKeys.parse(NEW)
    seals = [keys.seal(b"secret", ROW) for _ in range(100)]
    assert {key_of(each[:KEY_NAMED_IN]) for each in seals} == set(keys.ids)
    assert len({each[:ALIKE_IN_NONE] for each in seals}) == 100


@pytest.mark.parametrize("never", [b"", b"\x01", b"\x01abc", b"\x02abcdefgh"])
def test_bytes_that_were_never_sealed_name_no_key(never: bytes) -> None:
    assert key_of(never) is None


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


def test_no_keys_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="no master key"):
        MasterKeys([])


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


def test_generated_keys_differ() -> None:
    assert len({MasterKeys.generate() for _ in range(100)}) == 100
