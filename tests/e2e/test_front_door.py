"""Exporters while processes are killed: each span accepted is in one record, and none is lost."""

import json
import subprocess
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dev.stack import ROOT
from tests.e2e.harness.misfortune import House, suffer
from tests.e2e.harness.stack import PLAIN, Caller
from tests.support.faults import until
from tests.support.programs import frameworks
from tests.support.spans import AGENT, TOOL, request, span

pytestmark = pytest.mark.stacks

EXPORTER = ROOT / "tests" / "support" / "programs" / "exporter.py"
PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass
class Told:
    """What the records of a tenant say of its traces."""

    roots: dict[str, int]
    spans: dict[str, list[str]]


def records(caller: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 200}
    while True:
        page = caller.get("/v1/records", **query)
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]


def told(caller: Caller) -> Told:
    """Read every record and its bundle."""
    roots: defaultdict[str, int] = defaultdict(int)
    spans: defaultdict[str, list[str]] = defaultdict(list)
    for record in records(caller):
        labels = record["labels"]
        roots[labels["trace_id"]] += "supplement_of" not in labels
        bundle = json.loads(caller.ask("GET", f"/v1/records/{record['id']}/bundle").content)
        spans[labels["trace_id"]] += [step["span_id"] for step in bundle["steps"]]
    return Told(roots, spans)


def nothing_waits(caller: Caller) -> bool:
    try:
        answer = caller.ask("GET", "/v1/traces?status=staged&limit=1")
    except OSError:
        # The web that was killed last is not back yet.
        return False
    return answer.status_code == 200 and answer.json()["data"] == []


def held(caller: Caller, accepted: dict[str, list[str]]) -> None:
    """Hold that each accepted span is in one record, and each trace in one and its supplements."""
    until(lambda: nothing_waits(caller), 240)
    found = told(caller)
    for trace_id, spans in accepted.items():
        assert found.roots[trace_id] == 1, trace_id
        seen = found.spans[trace_id]
        assert len(seen) == len(set(seen)), f"{trace_id}: a span is there twice"
        assert set(spans) <= set(seen), f"{trace_id}: spans are lost"


def sent(caller: Caller, *, traces: int, pieces: int) -> dict[str, list[str]]:
    """Send runs in pieces until each is accepted, as exporters do; the root comes last."""
    accepted: dict[str, list[str]] = {}
    for piece in range(pieces):
        last = piece == pieces - 1
        made = [
            span(1 if last else piece + 2, None if last else 1, trace=trace, attributes=of)
            for trace in range(1, traces + 1)
            for of in [AGENT if last else TOOL]
        ]
        body = request(*made).SerializeToString()

        def taken(body: bytes = body) -> bool:
            try:
                answer = caller.ask("POST", "/v1/traces", data=body, headers=PROTOBUF)
            except OSError:
                return False
            return answer.status_code == 200

        # A batch that was taken is sent again all the same: its answer may have been lost.
        for _ in range(2):
            until(taken)
        for each in made:
            accepted.setdefault(each.trace_id.hex(), []).append(each.span_id.hex())
    return accepted


def test_spans_sent_while_web_and_worker_are_killed_are_in_one_record_each(service: House) -> None:
    caller = service.stack.fresh_tenant()
    accepted: dict[str, list[str]] = {}
    sending = threading.Thread(
        target=lambda: accepted.update(sent(caller, traces=40, pieces=12)), daemon=True
    )
    sending.start()
    suffer(3, service.killed("web", 1.4), service.killed("worker", 1.6))
    sending.join()
    assert len(accepted) == 40
    held(caller, accepted)


@pytest.mark.toolbox
def test_a_hundred_thousand_spans_of_ten_exporters(service: House, tmp_path: Path) -> None:
    caller = service.stack.fresh_tenant()
    environ = {
        **PLAIN,
        "OTEL_EXPORTER_OTLP_ENDPOINT": service.stack.base_url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {caller.key}",
    }
    running = []
    for number in range(10):
        command = [str(frameworks.python()), str(EXPORTER), str((number + 1) << 20), "500", "20"]
        with (tmp_path / f"{number}.json").open("wb") as out:
            running.append(subprocess.Popen(command, env=environ, stdout=out))
    suffer(20, service.killed("web", 4), service.killed("worker", 4))
    assert [each.wait(600) for each in running] == [0] * 10
    accepted: dict[str, list[str]] = {}
    for number in range(10):
        accepted |= json.loads((tmp_path / f"{number}.json").read_text())
    assert sum(map(len, accepted.values())) == 100_000
    held(caller, accepted)
