"""The client's address: the peer's, or the one that a trusted proxy forwards."""

from flask import request

from app.api.http.services import services
from app.lib import forwarded


def address() -> str:
    """Return the client's address, as trusted proxies forward it."""
    settings = services().settings
    name = settings.proxy_header
    sent = request.headers.get(name, "")
    peer = request.remote_addr or ""
    return forwarded.client_address(peer, name, sent, settings.trusted_proxies)


def network() -> str:
    """Return what a request without a key is rate limited by: an IPv4 address, or an IPv6 /64."""
    return forwarded.network(address())
