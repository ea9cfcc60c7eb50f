"""The client's address: forged forwarding headers do not change it."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lib.forwarded import FORWARDED, X_FORWARDED_FOR, client_address

PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
PROXY = "10.0.0.1"


@pytest.mark.parametrize(
    ("peer", "value", "client"),
    [
        # No proxy, or none that is trusted.
        ("198.51.100.7", "", "198.51.100.7"),
        ("198.51.100.7", "203.0.113.9", "198.51.100.7"),
        ("198.51.100.7", "203.0.113.9, 10.0.0.1", "198.51.100.7"),
        ("fe80::1%eth0", "203.0.113.9", "fe80::1"),
        ("", "203.0.113.9", ""),
        # One proxy, and callers who write a line of their own first.
        (PROXY, "203.0.113.9", "203.0.113.9"),
        (PROXY, "1.2.3.4, 203.0.113.9", "203.0.113.9"),
        (PROXY, "1.2.3.4,5.6.7.8,203.0.113.9", "203.0.113.9"),
        (PROXY, "10.9.9.9, 203.0.113.9", "203.0.113.9"),
        # Several proxies, and callers inside.
        (PROXY, "203.0.113.9, 10.0.0.2,10.0.0.3", "203.0.113.9"),
        (PROXY, "1.2.3.4, 203.0.113.9, fd00::2, 10.0.0.3", "203.0.113.9"),
        (PROXY, "10.0.0.9, 10.0.0.2", "10.0.0.9"),
        ("fd00::1", "2001:db8::9", "2001:db8::9"),
        ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9"),
        # As proxies write them: ports, brackets, other spellings.
        (PROXY, "203.0.113.9:51000", "203.0.113.9"),
        (PROXY, "[2001:db8::9]", "2001:db8::9"),
        (PROXY, "[2001:db8::9]:443", "2001:db8::9"),
        (PROXY, "2001:DB8:0:0::9", "2001:db8::9"),
        (PROXY, "::ffff:203.0.113.9", "203.0.113.9"),
        # What is no address says nothing, and nothing left of it counts.
        (PROXY, "", PROXY),
        (PROXY, ",", PROXY),
        (PROXY, "203.0.113.9,", PROXY),
        (PROXY, "203.0.113.9, unknown", PROXY),
        (PROXY, "203.0.113.9, 10.0.0.2:x", PROXY),
        (PROXY, "203.0.113.9, 10.0.0.256", PROXY),
        (PROXY, "203.0.113.9, 010.0.0.2", PROXY),
        (PROXY, "203.0.113.9, [10.0.0.2", PROXY),
        (PROXY, "203.0.113.9, fe80::1%eth0", PROXY),
        (PROXY, "203.0.113.9, 10.0.0.2, <script>, 10.0.0.3", "10.0.0.3"),
    ],
)
def test_the_client_is_the_rightmost_hop_that_is_not_trusted(
    peer: str, value: str, client: str
) -> None:
    assert client_address(peer, X_FORWARDED_FOR, value, PROXIES) == client


@pytest.mark.parametrize(
    ("value", "client"),
    [
        ("for=203.0.113.9", "203.0.113.9"),
        ("For=203.0.113.9;proto=https;by=10.0.0.1", "203.0.113.9"),
        ('for="203.0.113.9:51000"', "203.0.113.9"),
        ('for="[2001:db8::9]"', "2001:db8::9"),
        ('proto=https; for="[2001:db8::9]:443"', "2001:db8::9"),
        ("for=1.2.3.4, for=203.0.113.9", "203.0.113.9"),
        ("for=203.0.113.9, for=10.0.0.2", "203.0.113.9"),
        # A caller's quote cannot swallow what the proxy appended.
        ('for="1.2.3.4, for=203.0.113.9', "203.0.113.9"),
        ('for="\\", for=203.0.113.9', "203.0.113.9"),
        ('for=1.2.3.4;host="a, for=203.0.113.9', "203.0.113.9"),
        ("for=unknown", PROXY),
        ("for=203.0.113.9, for=_hidden", PROXY),
        ("for=203.0.113.9;for=1.2.3.4", PROXY),
        ("proto=https", PROXY),
        ("203.0.113.9", PROXY),
        ("for=", PROXY),
    ],
)
def test_forwarded_is_read_by_its_own_grammar(value: str, client: str) -> None:
    assert client_address(PROXY, FORWARDED, value, PROXIES) == client


@pytest.mark.parametrize("name", [X_FORWARDED_FOR, FORWARDED])
@given(hostile=st.text(max_size=60))
def test_whatever_a_caller_sends_the_proxy_has_the_last_word(name: str, hostile: str) -> None:
    appended = "203.0.113.9" if name == X_FORWARDED_FOR else "for=203.0.113.9"
    assert client_address(PROXY, name, f"{hostile}, {appended}", PROXIES) == "203.0.113.9"
    # Without a proxy it is of no consequence at all.
    assert client_address("203.0.113.9", name, hostile, PROXIES) == "203.0.113.9"
