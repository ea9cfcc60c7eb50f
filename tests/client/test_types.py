"""The client's types are those of the service's document, and find what callers mistype."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from dev import client_types
from dev.stack import ROOT

RIGHT = """
import asyncio
from record_service import AsyncClient, Client, schemas

client = Client()
made = client.findings.create(
    session_id="ses_1", rule="refund.above-limit", severity="critical", title="No second person"
)
rule: str = made["rule"]
severity: schemas.Severity = made["severity"]
for row in client.records.list(kind="refund", label=["team:a"], page_size=10, timeout=5.0):
    size: int = row["bundle"]["size"]
pack: bytes = client.evidence_packs.evidence("rec_1")
client.keys.revoke("key_1", descendants=True)
client.records.create_batch(records=[], atomic=True, idempotency_key="once")

async def main() -> None:
    async with AsyncClient() as waits:
        found = await waits.findings.read("fnd_1")
        print(found["title"])
        async for session in waits.sessions.list(status="open"):
            await waits.sessions.complete(session["id"], outcome="succeeded", timeout=1)

asyncio.run(main())
"""
TYPOS = {
    'client.findings.create(session_id="s", rule="r", severity="criticl", title="t")': "severity",
    'client.findings.create(sesion_id="s", rule="r", severity="low", title="t")': "sesion_id",
    'client.findings.create(session_id="s", rule="r", severity="low")': "title",
    'client.findings.read("fnd_1")["titel"]': "titel",
    "client.records.list(kind=4711)": "int",
    'client.sessions.complete(outcome="failed")': "Too few arguments",
    "client.findings.raed('fnd_1')": "raed",
    'agent.record("k", "t").finding("r", severity="urgent", title="t")': "severity",
    'await_less(client_async.findings.read("fnd_1"))': "Coroutine",
    'client_async.findings.read("fnd_1")["title"]': "Coroutine",
}
HEAD = """
from record_service import AsyncClient, Client, Recorder, schemas
client, client_async = Client(), AsyncClient()
agent = Recorder("desk").session()
def await_less(finding: schemas.Finding) -> None: ...
"""


def test_the_checked_in_types_are_those_of_the_document(client: FlaskClient) -> None:
    document = client.get("/openapi.json").json
    assert document is not None
    for name, text in client_types.files(document).items():
        written = (ROOT / "client" / "record_service" / name).read_text()
        assert written == text, f"{name}: run `python -m dev.client_types`"


@pytest.mark.toolbox
def test_mypy_finds_each_typo_and_nothing_in_what_is_right(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT)
    wrong.write_text(HEAD + "\n".join(TYPOS) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(right), str(wrong)],
        env={**os.environ, "MYPYPATH": str(ROOT / "client")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.splitlines()
    first = HEAD.count("\n") + 1
    missed = {
        typo: told
        for number, (typo, named) in enumerate(TYPOS.items(), first)
        for told in ["\n".join(line for line in said if line.startswith(f"wrong.py:{number}:"))]
        if named not in told
    }
    assert missed == {}, done.stdout + done.stderr
    assert [line for line in said if line.startswith("right.py")] == []
