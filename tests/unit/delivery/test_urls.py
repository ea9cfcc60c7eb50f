"""URLs of webhooks: hosts, forms of addresses and names that are refused."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lib.outbound.addresses import BadURL, Target, parse_url
from tests.support.servers.receivers import LOOPBACK
from tests.unit.delivery.networks import NOT_PUBLIC, PRIVATE_LAN

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
