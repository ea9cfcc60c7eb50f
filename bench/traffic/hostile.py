"""Sieges by name: what hostile callers of one tenant, and some without a key, do to a service."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from app.lib.crypto import api_keys
from bench.service import Service, Tenant
from bench.traffic import load
from bench.traffic.siege import Habit, Siege

MANY = 64
SETTINGS = "/v1/tenant/settings"
_READERS = 120
_POLLS = 40
_PROBES = 200
_SILENT = 1_100
_STEPS = 10_000
_DEEP = 140
_SLOW_BODY = b'{"name":"' + b"x" * 2_000 + b'"}'


def flat_with_a_deep_spot() -> bytes:
    """Return 900 KB of JSON that is refused for its last value alone."""
    return b"[" + b"[]," * 300_000 + b"[" * _DEEP + b"]" * _DEEP + b"]"


@contextmanager
def stalled(admin_url: str) -> Iterator[None]:
    """Have the database keep `/readyz` waiting for the length of a `with`."""
    with psycopg.connect(admin_url) as owner:
        owner.execute("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE")
        yield


def probes(port: int) -> Siege:
    """Return the siege of those who ask `/readyz`; `stalled` makes it last."""
    return Siege(port, load.head("GET", "/readyz", []), b"", _PROBES, Habit.REPEAT)


def sieges(service: Service, loud: Tenant) -> Iterator[tuple[str, Siege]]:
    """Yield the sieges of a tenant, each with its name."""
    yield from _large(service, loud)
    yield from _many(service, loud)


def _large(service: Service, loud: Tenant) -> Iterator[tuple[str, Siege]]:
    port = service.port
    drip = loud.head("POST", "/v1/agents")
    yield f"{MANY} slow bodies", Siege(port, drip, _SLOW_BODY, MANY, Habit.DRIP)
    loud.ask("PATCH", SETTINGS, {"bundle_visibility": "public"})
    large = loud.record_body(_STEPS)
    record = f"/v1/records/{loud.ask('POST', '/v1/records', large)['id']}"
    link = loud.ask("POST", f"{record}/share-links", {})["url"]
    page = link.removeprefix(service.base_url)
    token = page.rpartition("/")[2]
    for words, path in (("reads of prov.json", f"{record}/prov.json"), ("share pages", page)):
        yield f"{MANY} {words}", Siege(port, load.head("GET", path, []), b"", MANY, Habit.REPEAT)
    body = json.dumps(large).encode()
    words = f"{MANY} POSTs of {len(body) / 1e6:.1f} MB"
    yield words, Siege(port, loud.head("POST", "/v1/records"), body, MANY, Habit.REPEAT)
    held = load.head("GET", f"{record}/bundle?share_token={token}", [])
    yield f"{_READERS} slow readers of a bundle", Siege(port, held, b"", _READERS, Habit.HOLD)


def _many(service: Service, loud: Tenant) -> Iterator[tuple[str, Siege]]:
    port, deep = service.port, flat_with_a_deep_spot()
    posted = loud.head("POST", "/v1/agents")
    yield f"{_POLLS} POSTs of deep JSON", Siege(port, posted, deep, _POLLS, Habit.REPEAT)
    settings = load.head("GET", SETTINGS, [])
    yield (
        f"{MANY} spelled keys",
        Siege(port, settings, b"", MANY, Habit.REPEAT, tuple(_spellings(loud))),
    )
    after = loud.ask("GET", "/v1/events?after=now")["next_after"]
    poll = loud.head("GET", f"/v1/events?after={after}&wait=20")
    yield f"{_POLLS} dropped polls", Siege(port, poll, b"", _POLLS, Habit.DROP)
    half = b"GET /v1/tenant/settings HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    yield f"{_SILENT} half-sent heads", Siege(port, half, b"", _SILENT, Habit.SILENT)


def _spellings(loud: Tenant) -> Iterator[bytes]:
    """Yield the lines of valid keys, of keys of nobody, and of two credentials at once."""
    for number in range(MANY // 4):
        minted = loud.ask("POST", "/v1/keys", {"name": f"siege {number}", "role": "read"})["key"]
        yield f"Authorization: Bearer {minted}\r\n".encode()
        yield f"authorization: bEARER {' ' * number}{minted}\r\n".encode()
        yield f"x-api-key: {api_keys.new()}\r\n".encode()
        yield f"Authorization: Zz{number}\r\nx-api-key: {minted}\r\n".encode()
