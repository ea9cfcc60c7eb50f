"""Every line that a process of the Procfile writes is JSON, its server's own lines too."""

import json
import signal
from pathlib import Path

import pytest
import requests

from app import heartbeats
from tests.support.faults import LONG_ENOUGH, OwnValkey, until
from tests.support.programs import processes
from tests.support.servers.ports import own_port


@pytest.mark.parametrize(
    ("name", "server"), [("web", "_granian"), ("worker", "dramatiq.MainProcess"), ("scheduler", "")]
)
@pytest.mark.toolbox
def test_every_line_from_start_to_stop_is_json(
    environ: dict[str, str], own_valkey: OwnValkey, tmp_path: Path, name: str, server: str
) -> None:
    port = own_port()
    log = tmp_path / "log"
    own = {**environ, "REDIS_URL": own_valkey.url, "HOST": "127.0.0.1", "PORT": str(port)}

    def is_up() -> bool:
        if name in ("worker", "scheduler"):
            return next(
                up for role, up in heartbeats.presence(own_valkey.client).items() if role == name
            )
        try:
            return requests.get(f"http://127.0.0.1:{port}/healthz", timeout=LONG_ENOUGH).ok
        except requests.ConnectionError:
            return False

    with log.open("wb") as output:
        leader = processes.start(name, own, output)
    try:
        until(lambda: is_up() or leader.poll() is not None)
        assert leader.poll() is None, log.read_text("utf-8", "replace")
        leader.send_signal(signal.SIGTERM)
        leader.wait(LONG_ENOUGH)
    finally:
        leader.kill()
        leader.wait(LONG_ENOUGH)
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    if server:
        assert server in {line.get("logger") for line in lines}
