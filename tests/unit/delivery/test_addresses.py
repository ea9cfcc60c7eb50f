"""The SSRF guard: addresses that are public, and addresses that are not."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lib.outbound.addresses import RefusedAddress, is_public, translated, vet
from tests.unit.delivery.networks import NOT_PUBLIC

PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1"),
    *("126.255.255.255", "128.0.0.1", "169.253.255.255", "172.15.255.255", "172.32.0.1"),
    *("192.0.1.1", "192.167.255.255", "192.169.0.1", "198.17.255.255", "198.20.0.1"),
    *("223.255.255.255", "::ffff:8.8.8.8", "2001:200::1", "2001:4860:4860::8888", "2003::1"),
    *("2606:4700:4700::1111", "2a00:1450:4001::1", "3ffe::1"),
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_a_special_address_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_an_ordinary_address_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@given(st.ip_addresses())
def test_what_python_calls_private_is_never_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not address.is_global or address.is_multicast:
        assert not is_public(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_ipv6_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    assert is_public(ipaddress.ip_address(f"::ffff:{address}")) == is_public(address)


PREFIXES = [
    ("64:ff9b::/96", "64:ff9b::{0:02x}{1:02x}:{2:02x}{3:02x}"),
    ("64:ff9b:1:2::/96", "64:ff9b:1:2::{0:02x}{1:02x}:{2:02x}{3:02x}"),
    ("64:ff9b:1:2::/64", "64:ff9b:1:2:00{0:02x}:{1:02x}{2:02x}:{3:02x}00::"),
    ("2a00:64:1:200::/56", "2a00:64:1:2{0:02x}:00{1:02x}:{2:02x}{3:02x}::"),
    ("2a00:64:1::/48", "2a00:64:1:{0:02x}{1:02x}:00{2:02x}:{3:02x}00::"),
    ("2a00:64::/40", "2a00:64:00{0:02x}:{1:02x}{2:02x}:00{3:02x}::"),
    ("2a00:64::/32", "2a00:64:{0:02x}{1:02x}:{2:02x}{3:02x}::"),
]


@pytest.mark.parametrize(("prefix", "form"), PREFIXES)
@given(inside=st.ip_addresses(v=4))
def test_a_translated_address_is_judged_by_the_ipv4_address_inside(
    prefix: str, form: str, inside: ipaddress.IPv4Address
) -> None:
    network = ipaddress.IPv6Network(prefix)
    address = ipaddress.ip_address(form.format(*inside.packed))
    assert address in network
    assert translated(address, [network]) == inside
    # Whatever is said of the prefix.
    for allowed in ((), (network,)):
        try:
            vet([address], allowed, [network])
            passes = True
        except RefusedAddress:
            passes = False
        assert passes is is_public(inside)
    vet([address], [ipaddress.ip_network("0.0.0.0/0")], [network])


def test_a_prefix_that_is_not_named_is_not_translated() -> None:
    with pytest.raises(RefusedAddress):
        vet([ipaddress.ip_address("64:ff9b:1:2::808:808")])
    vet([ipaddress.ip_address("64:ff9b::808:808"), ipaddress.ip_address("8.8.8.8")])


def test_an_address_of_a_prefix_that_no_translator_takes_is_refused() -> None:
    prefix = ipaddress.IPv6Network("2a00:64::/32")
    odd = ipaddress.ip_address("2a00:64:808:808:100::")
    vet([odd])
    for allowed in ((), (prefix,)):
        with pytest.raises(RefusedAddress):
            vet([odd], allowed, [prefix])


def test_plain_http_needs_the_ipv4_address_inside_to_be_allowed() -> None:
    prefix = ipaddress.IPv6Network("64:ff9b::/96")
    with pytest.raises(RefusedAddress, match="https"):
        vet([ipaddress.ip_address("64:ff9b::808:808")], [prefix], encrypted=False)


def test_an_allowed_network_lets_no_zone_through() -> None:
    everything = [ipaddress.ip_network("::/0")]
    vet([ipaddress.ip_address("fe80::1")], everything)
    with pytest.raises(RefusedAddress):
        vet([ipaddress.ip_address("fe80::1%eth0")], everything)
