"""Timestamp responses as a strict reader takes them."""

import hypothesis.strategies as hypothesis
from hypothesis import given

from app.lib.crypto.timestamps import strict
from tests.unit.verify.authorities import der, integer

CONTENT_TYPE = b"\x06\x01\x2a"


def response(certificates: list[bytes], lists: list[bytes], status: int = 0) -> bytes:
    """A response as far as its unsigned parts."""
    signed = der(0x30, integer(3), der(0xA0, *certificates), der(0xA1, *lists), der(0x31))
    token = der(0x30, CONTENT_TYPE, der(0xA0, signed))
    return der(0x30, der(0x30, integer(status)), token)


def test_certificates_and_revocation_lists_are_put_in_the_order_of_der() -> None:
    short, long, last = der(0x30, b"zz"), der(0x30, b"a" * 200), der(0x30, b"b" * 200)
    given_, wanted = [last, short, long], [short, long, last]
    assert strict(response(given_, given_[::-1])) == response(wanted, wanted)
    assert strict(response([], [])) == response([], [])


def test_a_grant_with_modifications_is_read_as_a_grant_and_no_other_status_is() -> None:
    assert strict(response([], [], status=1)) == response([], [])
    for status in (0, 2, 5):
        assert strict(response([], [], status)) == response([], [], status)
    rejection = der(0x30, der(0x30, integer(1)))
    assert strict(rejection) == rejection, "without a token nothing was granted"


@given(data=hypothesis.binary(max_size=60), at=hypothesis.integers(0, 220))
def test_no_bytes_are_added_or_lost(data: bytes, at: int) -> None:
    good = response([der(0x30, b"b" * 90), der(0x30, b"a" * 90)], [])
    assert at > len(good) - 1 or strict(good[:at]) == good[:at], "what cannot be read stays"
    for each in (data, good[:at] + data + good[at + len(data) :]):
        assert len(strict(each)) == len(each)
