"""What the web processes do before the application sees a request: start, stop, know a caller."""

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from uuid import UUID

import pytest

from app.lib.crypto import api_keys
from app.lib.gateway.requests import environ
from app.settings import Settings
from app.web import caller
from dev import procfile
from tests.support.faults import LONG_ENOUGH, until
from tests.support.secrets import MASTER_KEYS_SETTING
from tests.support.servers.ports import own_port
from tests.unit.http.gateway.exchange import Exchange

ROOT = Path(__file__).resolve().parents[3]

NEEDED = {
    "DATABASE_URL": "postgresql://records.test/records",
    "MASTER_KEYS": MASTER_KEYS_SETTING,
    "BASE_URL": "https://records.test",
}
SETTINGS = Settings.from_environ({**NEEDED, "TRUSTED_PROXIES": "10.0.0.0/8"})


KEY, TENANT = api_keys.new(), UUID(int=7)
KNOWN = {KEY: TENANT}


PEER, PROXY = "203.0.113.5", "10.0.0.1"
OURS = (b"x-api-key", KEY.encode())
CALLERS: dict[str, tuple[str, list[tuple[bytes, bytes]], object]] = {
    "the peer": (PEER, [], PEER),
    "not from a proxy": (PEER, [(b"x-forwarded-for", b"198.51.100.7")], PEER),
    "behind a proxy": (
        PROXY,
        [(b"x-forwarded-for", b"198.51.100.7, 203.0.113.9")],
        "203.0.113.9",
    ),
    "a line of each of two proxies": (
        PROXY,
        [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-for", b"10.0.0.2")],
        "203.0.113.9",
    ),
    "an underscore": (PROXY, [(b"x_forwarded_for", b"203.0.113.9")], PROXY),
    "a known key": (PEER, [OURS], TENANT),
    "with spaces around it": (PEER, [(b"x-api-key", b" %s " % KEY.encode())], TENANT),
    "as bearer": (PEER, [(b"authorization", b"Bearer " + KEY.encode())], TENANT),
    "another spelling of bearer": (PEER, [(b"authorization", b"bEARER   " + KEY.encode())], TENANT),
    "an empty second header": (PEER, [OURS, (b"authorization", b"")], TENANT),
    "an unknown key": (PEER, [(b"x-api-key", api_keys.new().encode())], PEER),
    "no key": (PEER, [(b"authorization", b"Zz17")], PEER),
    "another scheme": (PEER, [(b"authorization", b"Basic " + KEY.encode())], PEER),
    "two credentials": (PEER, [OURS, (b"authorization", b"Zz")], PEER),
    "a header twice": (PEER, [OURS] * 2, PEER),
    "a key with underscores": (PEER, [(b"x_api_key", KEY.encode())], PEER),
}


@pytest.mark.parametrize(("peer", "headers", "expected"), CALLERS.values(), ids=CALLERS)
def test_a_caller_is_the_tenant_of_a_known_key_or_an_address(
    peer: str, headers: list[tuple[bytes, bytes]], expected: object
) -> None:
    exchange = Exchange("GET", "/", *headers)
    exchange.scope["client"] = (peer, 4711)
    assert caller(SETTINGS, KNOWN.get, environ(exchange.scope, BytesIO())) == expected


def test_workers_that_are_told_to_stop_while_they_start_end_at_once() -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**NEEDED, "PATH": path, "HOST": "127.0.0.1", "PORT": str(own_port())}
    command = procfile.read(ROOT / "Procfile")["web"]
    # Granian's word that it kills a worker is no proof: it may not have seen the worker's end yet.
    never_killed = command.replace("--workers-kill-timeout 20", "--workers-kill-timeout 1800")
    assert never_killed != command
    with subprocess.Popen(
        ["/bin/sh", "-c", never_killed],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as web:
        try:
            until(lambda: _importing(web.pid) == 2)
            web.terminate()
            web.communicate(timeout=LONG_ENOUGH)
        finally:
            web.kill()
    assert web.returncode == 0


def _importing(master: int) -> int:
    """Count the workers that import the application, by a library of it that is mapped.

    Before, in the moment of its fork, Python drops a worker's signal, and granian kills it later.
    """
    children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    return sum("/psycopg" in _maps(child) for child in children)


def _maps(process: str) -> str:
    try:
        return Path(f"/proc/{process}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):  # It has ended in the meantime.
        return ""
