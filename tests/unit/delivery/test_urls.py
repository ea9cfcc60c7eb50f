"""The SSRF guard: URLs of webhooks, and which addresses are public."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lib.outbound.addresses import (
    BadURL,
    RefusedAddress,
    Target,
    is_public,
    parse_url,
    translated,
    vet,
)
from tests.support.servers.receivers import LOOPBACK

PRIVATE_LAN = (ipaddress.ip_network("10.0.0.0/8"), *LOOPBACK)
NOT_PUBLIC = [
    *("0.0.0.0", "0.255.255.255", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255"),
    *("100.100.100.200", "127.0.0.1", "127.255.255.255", "169.254.0.1", "169.254.169.254"),
    *("172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.31.196.1"),
    *("192.52.193.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "192.175.48.1"),
    *("198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
    *("239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"),
    *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "100:0:0:1::1", "2001::1"),
    *("2001:2::1", "2001:10::1", "2001:20::1", "2001:1ff::1", "2001:db8::1", "2002:7f00:1::1"),
    *("2002:808:808::1", "2620:4f:8000::1", "3fff::1", "3fff:fff::1", "4000::1", "5f00::1"),
    *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1"),
    "2606:4700::1111%eth0",
]
# What a resolver, a browser or another client would read as an internal address, or as none.
ADDRESS_FORMS = {
    "decimal": "2130706433",
    "decimal with dots": "127.0.0.1.",
    "octal": "0177.0.0.1",
    "octal whole": "017700000001",
    "hexadecimal": "0x7f.0.0.1",
    "hexadecimal whole": "0x7f000001",
    "hexadecimal in capitals": "0X7F000001",
    "hexadecimal last": "127.0.0.0x1",
    "empty hexadecimal": "127.0.0.0x",
    "short": "127.1",
    "shorter": "127.0.1",
    "zero": "0",
    "leading zeros": "127.000.000.001",
    "too large": "256.0.0.1",
    "five numbers": "1.2.3.4.5",
    "name that ends in a number": "example.123",
    "mapped": "[::ffff:127.0.0.1]",
    "mapped in hexadecimal": "[::ffff:7f00:1]",
    "mapped and public": "[::ffff:8.8.8.8]",
    "zone": "[fe80::1%25eth0]",
    "raw zone": "[fe80::1%eth0]",
    "IPvFuture": "[v1.127.0.0.1]",
    "IPv4 in brackets": "[127.0.0.1]",
    "name in brackets": "[localhost]",
    "unclosed bracket": "[::1",
    "text before a bracket": "x[::1]",
    "text behind a bracket": "[::1]x",
    "no brackets": "::1",
    "percent-encoded": "127.0.0.%31",
    "percent-encoded name": "loc%61lhost",
    "full-width digits": "\uff11\uff12\uff17.0.0.1",
    "ideographic full stops": "127。0。0。1",
    "circled digits": "①②⑦.0.0.1",
}


@pytest.mark.parametrize("allowed", [(), LOOPBACK, PRIVATE_LAN], ids=["strict", "loopback", "lan"])
@pytest.mark.parametrize("host", ADDRESS_FORMS.values(), ids=ADDRESS_FORMS.keys())
def test_an_address_in_an_unusual_form_is_refused_whatever_is_allowed(
    host: str, allowed: tuple[ipaddress.IPv4Network, ...]
) -> None:
    for scheme in ("https", "http"):
        for port in ("", ":8443"):
            with pytest.raises(BadURL):
                parse_url(f"{scheme}://{host}{port}/hook", allowed)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(BadURL):
        parse_url(f"https://{host}/hook")


INTERNAL_NAMES = [
    *("localhost", "LOCALHOST", "x.localhost", "redis", "printer.local", "db.internal", "a.b.lan"),
    *("metadata.google.internal", "router.home.arpa", "home.arpa", "x.onion", "x.invalid"),
    *("nas.home", "git.corp", "wiki.intranet", "x.private", "x.alt", "localhost.localdomain"),
]


@pytest.mark.parametrize("host", INTERNAL_NAMES)
def test_a_name_that_resolves_only_inside_is_refused(host: str) -> None:
    with pytest.raises(BadURL, match="name"):
        parse_url(f"https://{host}/hook")


def test_a_name_of_this_machine_passes_when_loopback_is_allowed() -> None:
    for host in ("localhost", "hook.localhost", "127.0.0.1", "127.9.9.9", "[::1]"):
        parse_url(f"http://{host}:9000/", LOOPBACK)
        parse_url(f"https://{host}:9000/", LOOPBACK)


def test_other_internal_names_need_more_than_loopback() -> None:
    with pytest.raises(BadURL):
        parse_url("http://receiver:9000/", LOOPBACK)
    parse_url("http://receiver:9000/", PRIVATE_LAN)
    parse_url("http://receiver.internal/", PRIVATE_LAN)
    parse_url("http://10.1.2.3/", PRIVATE_LAN)


def test_this_machine_needs_loopback_to_be_allowed() -> None:
    with pytest.raises(BadURL):
        parse_url("http://localhost/", [ipaddress.ip_network("10.0.0.0/8")])


def test_http_is_refused_but_to_allowed_networks() -> None:
    with pytest.raises(BadURL, match="https"):
        parse_url("http://hooks.example.com/")
    with pytest.raises(BadURL, match="https"):
        parse_url("http://8.8.8.8/", LOOPBACK)
    # Whether a name leads to an allowed network shows when it is resolved.
    parse_url("http://hooks.example.com/", LOOPBACK)


BAD_URLS = {
    "empty": "",
    "no scheme": "hooks.example.com/x",
    "no scheme, only slashes": "//hooks.example.com/x",
    "ftp": "ftp://hooks.example.com/",
    "file": "file:///etc/passwd",
    "gopher": "gopher://hooks.example.com/_x",
    "javascript": "javascript:alert(1)",
    "data": "data:text/plain,x",
    "unix": "http+unix://%2Fvar%2Frun%2Fdocker.sock/x",
    "no host": "https:///hook",
    "no slashes": "https:hooks.example.com",
    "only a port": "https://:443/",
    "user": "https://user@hooks.example.com/",
    "user and password": "https://user:secret@hooks.example.com/",
    "empty user": "https://@hooks.example.com/",
    "host in the user": "https://hooks.example.com@127.0.0.1/",
    "fragment": "https://hooks.example.com/#x",
    "empty fragment": "https://hooks.example.com/#",
    "fragment before the host": "https://hooks.example.com#@127.0.0.1/",
    "space": "https://hooks.example.com/a b",
    "leading space": " https://hooks.example.com/",
    "trailing newline": "https://hooks.example.com/\n",
    "tab in the host": "https://hooks\t.example.com/",
    "null": "https://hooks.example.com/\x00",
    "header injection": "https://hooks.example.com/ HTTP/1.1\r\nX: y",
    "delete": "https://hooks.example.com/\x7f",
    "backslash": "https://hooks.example.com\\@127.0.0.1/",
    "backslashes for slashes": "https:\\\\hooks.example.com\\x",
    "letters outside ASCII in the host": "https://bücher.example/",
    "letters outside ASCII in the path": "https://hooks.example.com/ü",
    "lone surrogate": "https://hooks.example.com/\ud800",
    "port 0": "https://hooks.example.com:0/",
    "port too large": "https://hooks.example.com:65536/",
    "port far too large": "https://hooks.example.com:99999999999999999999/",
    "negative port": "https://hooks.example.com:-1/",
    "port in words": "https://hooks.example.com:https/",
    "port with sign": "https://hooks.example.com:+443/",
    "empty port": "https://hooks.example.com:/",
    "two ports": "https://hooks.example.com:443:80/",
    "trailing dot": "https://hooks.example.com./",
    "only a dot": "https://./",
    "empty label": "https://hooks..example.com/",
    "leading dot": "https://.example.com/",
    "label of 64 letters": f"https://{'a' * 64}.example.com/",
    "name of 254 letters": f"https://{'a.' * 126}aa/",
    "comma": "https://hooks.example.com,127.0.0.1/",
    "asterisk": "https://*.example.com/",
    "long": "https://hooks.example.com/" + "a" * 2023,
}


@pytest.mark.parametrize("allowed", [(), LOOPBACK, PRIVATE_LAN], ids=["strict", "loopback", "lan"])
@pytest.mark.parametrize("url", BAD_URLS.values(), ids=BAD_URLS.keys())
def test_a_bad_url_is_refused_with_a_sentence(
    url: str, allowed: tuple[ipaddress.IPv4Network, ...]
) -> None:
    with pytest.raises(BadURL) as refused:
        parse_url(url, allowed)
    assert refused.value.detail.endswith(".")
    assert "secret" not in refused.value.detail


GOOD_URLS = {
    "https://hooks.example.com": Target("https", "hooks.example.com", 443, "/"),
    "HTTPS://Hooks.Example.COM/A": Target("https", "hooks.example.com", 443, "/A"),
    "https://hooks.example.com:8443/a/../b?x=1&y=/@:": Target(
        "https", "hooks.example.com", 8443, "/a/../b?x=1&y=/@:"
    ),
    "https://hooks.example.com/ok?token=a%2Fb&note=%2f[0]|'": Target(
        "https", "hooks.example.com", 443, "/ok?token=a%2Fb&note=%2f[0]|'"
    ),
    "https://hooks.example.com/x?": Target("https", "hooks.example.com", 443, "/x?"),
    "https://hooks.example.com?": Target("https", "hooks.example.com", 443, "/?"),
    "https://hooks.example.com/a//b;c?d?e": Target(
        "https", "hooks.example.com", 443, "/a//b;c?d?e"
    ),
    "https://hooks.example.com?x": Target("https", "hooks.example.com", 443, "/?x"),
    "https://hooks.example.com//a//": Target("https", "hooks.example.com", 443, "//a//"),
    "https://my_app.example.com/": Target("https", "my_app.example.com", 443, "/"),
    "https://xn--bcher-kva.example/": Target("https", "xn--bcher-kva.example", 443, "/"),
    "https://1.example.com/": Target("https", "1.example.com", 443, "/"),
    "https://8.8.8.8:444/": Target("https", "8.8.8.8", 444, "/"),
    "https://[2606:4700:4700::1111]:444/": Target("https", "2606:4700:4700::1111", 444, "/"),
    "https://localhost.example.com/": Target("https", "localhost.example.com", 443, "/"),
    "https://127.0.0.1.nip.io/": Target("https", "127.0.0.1.nip.io", 443, "/"),
    "https://hooks.example.com/" + "a" * 2022: Target(
        "https", "hooks.example.com", 443, "/" + "a" * 2022
    ),
}


@pytest.mark.parametrize(("url", "target"), GOOD_URLS.items())
def test_a_good_url_is_read_as_it_is_written(url: str, target: Target) -> None:
    assert parse_url(url) == target


@pytest.mark.parametrize(
    ("rest", "advice"),
    [
        *(("/a b", "%20"), ("/ü", "%C3%BC"), ("/\n", "%0A"), ("/a#b", "%23")),
        *(("?note=50%", "%25"), ("/a%2Fb%2?x", "%25"), ("/%zz", "%25")),
    ],
)
def test_what_no_server_takes_is_refused_with_the_encoded_form(rest: str, advice: str) -> None:
    with pytest.raises(BadURL, match=advice):
        parse_url(f"https://hooks.example.com{rest}")


@pytest.mark.parametrize("allowed", [(), [ipaddress.ip_network("::/0")]])
def test_a_translated_address_is_no_host(allowed: list[ipaddress.IPv6Network]) -> None:
    prefix = ipaddress.IPv6Network("2a00:64::/96")
    for host in ("[64:ff9b::808:808]", "[2a00:64::808:808]", "[2a00:64::a00:1]"):
        with pytest.raises(BadURL, match="IPv4 address"):
            parse_url(f"https://{host}/", allowed, [prefix])


@given(st.text(st.characters(codec="latin-1"), max_size=60))
def test_any_text_is_either_refused_or_names_a_public_host(text: str) -> None:
    for url in (text, f"https://{text}", f"https://hooks.example.com{text}"):
        try:
            target = parse_url(url)
        except BadURL:
            continue
        assert target.scheme == "https"
        assert target.host.isascii()
        assert "." in target.host or ":" in target.host
        assert 1 <= target.port <= 65535
        assert target.path.startswith("/")


PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1"),
    *("126.255.255.255", "128.0.0.1", "169.253.255.255", "172.15.255.255", "172.32.0.1"),
    *("192.0.1.1", "192.167.255.255", "192.169.0.1", "198.17.255.255", "198.20.0.1"),
    *("223.255.255.255", "::ffff:8.8.8.8", "2001:200::1", "2001:4860:4860::8888", "2003::1"),
    *("2606:4700:4700::1111", "2a00:1450:4001::1", "3ffe::1"),
]


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
