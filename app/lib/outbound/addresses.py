"""SSRF guard: which addresses and URLs this service may send to.

Customers name the URLs that are called from inside our network. Only public addresses pass, and
only URLs that parse in one way. URLs are checked at registration and at each attempt; resolved
addresses whenever a connection is made.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import quote

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL_LENGTH = 2048
DEFAULT_PORTS = {"https": 443, "http": 80}

# The IANA IPv4 Special-Purpose Address Registry (RFC 6890), whole: the few entries that it calls
# globally reachable are anycast infrastructure, where no receiver lives. Multicast (RFC 5771) has a
# registry of its own. The last is public on paper, and on Azure the host's own agent.
_REFUSED_IPV4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
    )
)

# Global unicast is all that IANA gives out (RFC 4291, section 2.4); NAT64, unique local, link-local
# and multicast lie outside it. Inside it, from the IPv6 Special-Purpose Address Registry: protocol
# assignments with Teredo and ORCHID, documentation (two ranges), 6to4, and AS112.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_REFUSED_IPV6 = tuple(
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48")
)

# Translated to IPv4 (NAT64) everywhere (RFC 6052, section 2.1); WEBHOOK_NAT64_PREFIXES adds others.
WELL_KNOWN_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
NAT64_PREFIX_LENGTHS = (32, 40, 48, 56, 64, 96)
# Octet 8 (bits 64 to 71) is zero and holds no part of the address (RFC 6052, section 2.2).
_NAT64_RESERVED = 8

_LOOPBACK = (ipaddress.IPv4Network("127.0.0.0/8"), ipaddress.IPv6Network("::1/128"))

# Names that resolve inside a network or nowhere: RFC 6761 (localhost, invalid), RFC 6762 (local,
# and in appendix G what people use instead), RFC 7686 (onion), RFC 8375 (home.arpa), RFC 9476
# (alt), and `internal`, which ICANN reserved for private use in 2024.
_INTERNAL_SUFFIXES = (
    *("alt", "corp", "home", "home.arpa", "internal", "intranet", "invalid", "lan", "local"),
    *("localdomain", "onion", "private"),
)

# All that follows the authority leaves as it is written. The one parser of a URL: what is vetted is
# what is dialled.
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<rest>.*)")
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
# RFC 3986, section 3.2, without user information.
_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-f.]*:[0-9a-f:.]*\]|[^:\[\]]*)(?::(?P<port>.*))?")
_NOT_PRINTABLE_ASCII = re.compile(r"[^\x21-\x7e]")
# The one way in for receivers inside a network, told where it would have helped.
_ALLOW = "or have the operator put its network into WEBHOOK_ALLOWED_NETWORKS"
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class RefusedAddress(Exception):
    """An address is not one that this service may connect to."""


class BadURL(ValueError):
    """A URL cannot be sent to; `detail` says what is wrong with it and how to mend it."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that passed: what to connect to, and what to ask for there."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def encrypted(self) -> bool:
        """Whether the request travels under TLS."""
        return self.scheme == "https"


EVERYWHERE = (ipaddress.IPv4Network("0.0.0.0/0"), ipaddress.IPv6Network("::/0"))
"""For URLs that the operator chooses, never for a customer's."""


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address inside `::ffff:0:0/96`, else the address itself."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_public(address: Address) -> bool:
    """Say whether an address belongs to the public internet, by IANA's registries.

    An IPv4 address inside an IPv6 one (`::ffff:a.b.c.d`) is judged as the IPv4 address that it is;
    an address with a zone (RFC 4007) is never public.
    """
    address = unwrapped(address)
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _REFUSED_IPV4)
    if address.scope_id is not None or address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _REFUSED_IPV6)


def translated(address: Address, prefixes: Iterable[ipaddress.IPv6Network]) -> Address | None:
    """Return the IPv4 address that a translator (NAT64) makes of an address, else the address.

    None if the address lies in a prefix but is none that a translator takes.
    """
    if isinstance(address, ipaddress.IPv4Address) or address.scope_id is not None:
        return address
    for prefix in (WELL_KNOWN_NAT64, *prefixes):
        if address in prefix:
            octets = address.packed
            if octets[_NAT64_RESERVED]:
                return None
            first = prefix.prefixlen // 8
            inside = [octets[at] for at in range(first, 16) if at != _NAT64_RESERVED]
            return ipaddress.IPv4Address(bytes(inside[:4]))
    return address


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    """Say whether an address lies in one of `networks`; one with a zone lies in none."""
    address = unwrapped(address)
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return False
    return any(address in network for network in networks)


def vet(
    addresses: Collection[Address],
    allowed_networks: Collection[Network] = (),
    nat64_prefixes: Collection[ipaddress.IPv6Network] = (),
    *,
    encrypted: bool = True,
) -> None:
    """Pass only if every address may be connected to.

    An address passes when it is public and the connection encrypted, or when it lies in one of
    `allowed_networks`; one that is translated (NAT64) is judged by the IPv4 address inside alone.
    One bad address refuses them all: who mixes them means us to pick the wrong one. Raises
    `RefusedAddress`, which never tells the address: for a name of ours, that is news.
    """
    if not addresses:
        raise RefusedAddress("there is no address to connect to")
    for written in addresses:
        address = translated(written, nat64_prefixes)
        if address is not None and is_within(address, allowed_networks):
            continue
        if address is None or not is_public(address):
            raise RefusedAddress("the address is not a public one")
        if not encrypted:
            raise RefusedAddress("http:// is not allowed to this address; use https://")


def parse_url(
    url: str,
    allowed_networks: Collection[Network] = (),
    nat64_prefixes: Collection[ipaddress.IPv6Network] = (),
) -> Target:
    """Check a URL, and return what it names; path and query as they are written.

    Connections use this result alone, so that no second parser can read the URL differently. Raises
    `BadURL` for what could never be sent to, or be read in more than one way. A name that passes is
    still resolved and vetted at each connection.
    """
    scheme, netloc, rest = _split(url)
    if scheme not in DEFAULT_PORTS:
        raise BadURL("The URL must begin with https://.")
    host, port = _authority(netloc)
    address = _literal(host, nat64_prefixes)
    # What every attempt would refuse is refused at once.
    if address is None:
        _check_name(host, allowed_networks)
    elif not is_within(address, allowed_networks):
        if not is_public(address):
            raise BadURL(f"The host is an address that is not public; use a public one, {_ALLOW}.")
        if scheme == "http":
            raise BadURL("http:// is not allowed to a public address; use https://.")
    if scheme == "http" and not allowed_networks:
        raise BadURL(f"http:// is not encrypted; use https://, {_ALLOW}.")
    if bare := _BARE_PERCENT.search(url):
        raise BadURL(
            f"The % at character {bare.start() + 1} of the URL begins no %XX; write %25 for a % "
            "that is meant."
        )
    path = rest if rest.startswith("/") else f"/{rest}"
    return Target(scheme, host, port or DEFAULT_PORTS[scheme], path)


def _split(url: str) -> tuple[str, str, str]:
    """Return scheme, authority, and all that follows it."""
    if len(url) > MAX_URL_LENGTH:
        raise BadURL(f"The URL is longer than {MAX_URL_LENGTH} characters.")
    if odd := _NOT_PRINTABLE_ASCII.search(url):
        # A lone surrogate has no encoding.
        encoded = "" if "\ud800" <= odd[0] <= "\udfff" else f" as {quote(odd[0])}"
        raise BadURL(
            "The URL holds a space, a control character or a letter outside ASCII, at character "
            f"{odd.start() + 1}; percent-encode it{encoded}, or in the host write the name in "
            "its ASCII form (xn--…)."
        )
    if "\\" in url:
        raise BadURL("The URL holds a backslash; write / or %5C.")
    if "#" in url:
        raise BadURL(
            "The URL has a fragment (#…), which is never sent; leave it out, or write %23 for a # "
            "that is meant."
        )
    parts = _URL.fullmatch(url)
    if parts is None:
        raise BadURL("The URL must begin with https://.")
    return parts["scheme"].lower(), parts["authority"], parts["rest"]


def _authority(netloc: str) -> tuple[str, int | None]:
    """Return the host in lower case, an IPv6 address without brackets, and the port if given."""
    if "@" in netloc:
        raise BadURL("The URL holds credentials (user:password@); leave them out.")
    if "%" in netloc:
        raise BadURL("The host holds a %; write the name plainly, an IPv6 address without a zone.")
    match = _AUTHORITY.fullmatch(netloc.lower())
    if match is None:
        raise BadURL("The host cannot be read; write https://host/ or https://host:443/.")
    host = match["host"].strip("[]")
    if not host:
        raise BadURL("The URL has no host; write https://host/path.")
    if host.endswith("."):
        raise BadURL("The host ends with a dot; leave it out.")
    if (text := match["port"]) is None:
        return host, None
    port = int(text) if text.isdecimal() and len(text) <= 5 else 0
    if not 1 <= port <= 65535:
        raise BadURL("The port must be a number from 1 to 65535.")
    return host, port


def _literal(host: str, nat64_prefixes: Collection[ipaddress.IPv6Network]) -> Address | None:
    """Read a host that is an address; None when it is a name.

    Only the canonical spelling passes. Resolvers read `2130706433`, `0177.0.0.1`, `0x7f.1` and
    `127.1` as addresses too; what ends in a number is an address or nothing (WHATWG URL,
    "ends-in-a-number checker").
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
            raise BadURL(
                "The host is an IP address in an unusual form; write four decimal numbers, or an "
                "IPv6 address in brackets."
            ) from None
        return None
    if unwrapped(address) != address or translated(address, nat64_prefixes) != address:
        raise BadURL("The host is an IPv4 address inside an IPv6 one; write the IPv4 address.")
    return address


def _check_name(host: str, allowed_networks: Collection[Network]) -> None:
    def has_suffix(*suffixes: str) -> bool:
        return any(f".{host}".endswith(f".{suffix}") for suffix in suffixes)

    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise BadURL("The host is not a valid name: letters, digits, - and _, between dots.")
    if has_suffix("localhost"):
        if not any(network.overlaps(own) for network in allowed_networks for own in _LOOPBACK):
            raise BadURL(f"The host names this machine; use a public name, {_ALLOW}.")
    elif ("." not in host or has_suffix(*_INTERNAL_SUFFIXES)) and all(
        network.is_loopback for network in allowed_networks
    ):
        raise BadURL(
            f"The host is a name that resolves only inside a network; use a public one, {_ALLOW}."
        )
