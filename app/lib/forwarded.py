"""The client's address behind proxies: X-Forwarded-For, and Forwarded (RFC 7239).

Each proxy appends the address that it saw, so only the part by trusted proxies counts: from the
right, up to the first address that is no trusted proxy's. The client may have written the rest.
"""

import ipaddress
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from types import MappingProxyType

from app.lib.outbound.addresses import Address, Network, is_within, unwrapped

X_FORWARDED_FOR, FORWARDED = "X-Forwarded-For", "Forwarded"

# An address, in brackets or not, with a port or not; a zone (RFC 4007) means nothing elsewhere.
_HOP = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+))(?::[0-9]{1,5})?|([0-9a-fA-F:.]+)")
_LONGEST = len("0000:0000:0000:0000:0000:ffff:255.255.255.255")
_PAIR = re.compile(r'([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:"([^"\\]*)"|([^"\s;,]+))')


def client_address(peer: str, name: str, value: str, trusted: Collection[Network]) -> str:
    """Return the address of the last hop that is no trusted proxy, in its canonical form.

    `peer` is whom the connection comes from, `value` the field `name` with several lines joined by
    commas. Where a trusted proxy wrote what is no address (`unknown`, `_hidden`), or every hop is
    trusted, it is the last address that is known. Empty where the peer is no address.
    """
    known = _address(peer.partition("%")[0])
    if known is None:
        return ""
    for element in reversed(value.split(",")):
        if not is_within(known, trusted):
            break
        hop = _HOPS[name](element.strip())
        if hop is None:
            break
        known = hop
    return str(known)


def is_trusted(peer: str, trusted: Collection[Network]) -> bool:
    """Return whether a connection comes from a trusted proxy."""
    known = _address(peer.partition("%")[0])
    return known is not None and is_within(known, trusted)


def network(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 of IPv6 that one host has."""
    if ":" not in address:
        return address
    return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))


def _x_forwarded_for(element: str) -> Address | None:
    match = _HOP.fullmatch(element)
    return None if match is None else _address(match[1] or match[2] or match[3])


def _forwarded(element: str) -> Address | None:
    """Read one element's `for`. A comma inside quotes makes two of one, both of them unreadable."""
    hops = []
    for pair in element.split(";"):
        match = _PAIR.fullmatch(pair.strip())
        if match is None:
            return None
        if match[1].lower() == "for":
            hops.append(match[2] if match[2] is not None else match[3])
    return _x_forwarded_for(hops[0]) if len(hops) == 1 else None


_HOPS: "MappingProxyType[str, Callable[[str], Address | None]]" = MappingProxyType(
    {X_FORWARDED_FOR: _x_forwarded_for, FORWARDED: _forwarded}
)


def _address(text: str) -> Address | None:
    # No address is longer, and the cache is to stay small.
    return _parsed(text) if len(text) <= _LONGEST else None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Address | None:
    try:
        return unwrapped(ipaddress.ip_address(text))
    except ValueError:
        return None
