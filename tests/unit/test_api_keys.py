"""The text of an API key: recognisable, checkable, and any other text is refused."""

import re
from collections.abc import Callable
from hashlib import sha256
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lib.crypto import api_keys

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def checksum_of(text: str) -> int:
    return sum(DIGITS.index(digit) * 62**place for place, digit in enumerate(reversed(text)))


def test_a_new_key_has_the_form_that_scanners_look_for() -> None:
    assert re.fullmatch(r"svc_[0-9A-Za-z]{46}", api_keys.new())


def test_its_last_six_characters_are_the_crc_32_of_the_rest() -> None:
    for _ in range(100):
        key = api_keys.new()
        assert checksum_of(key[-6:]) == crc32(key[:-6].encode())


def test_a_checksum_with_leading_zeros_keeps_its_six_characters() -> None:
    keys = (f"svc_{number:040d}" for number in range(100_000))
    small = next(key for key in keys if crc32(key.encode()) < 62**4)
    number = crc32(small.encode())
    digits = "".join(DIGITS[number // 62**place % 62] for place in (5, 4, 3, 2, 1, 0))
    assert digits.startswith("00")
    assert api_keys.well_formed(small + digits)


def test_no_two_keys_are_alike_and_all_characters_occur() -> None:
    keys = {api_keys.new() for _ in range(2000)}
    assert len(keys) == 2000
    assert set("".join(key[4:-6] for key in keys)) == set(DIGITS)


def test_a_new_key_is_well_formed() -> None:
    assert all(api_keys.well_formed(api_keys.new()) for _ in range(100))


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


def test_the_digest_is_the_sha_256_of_the_whole_text() -> None:
    key = api_keys.new()
    assert api_keys.digest(key) == sha256(key.encode()).digest()
