"""What the README and the documents tell to run works: recipes, the tour, a deployment."""

import io
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app.lib.crypto.webhook_signing import Signer, new_secret
from dev.stack import ROOT
from tests.e2e.harness.stack import PLAIN, RunningStack
from tests.support.faults import until
from tests.support.programs.documents import block
from tests.support.servers.ports import own_port
from tests.support.servers.receivers import Receiver

EVENT = "evt_019a0b7c4c1d7e2f9a3b4c5d6e7f8091"
BODY = '{"data":{"title":"Grüße"},"type":"finding.created"}'.encode()


def delivery(secret: str, timestamp: int | None = None) -> dict[str, str]:
    """Return the headers of a delivery of BODY, signed as the service signs."""
    return Signer([new_secret(), secret]).headers(EVENT, timestamp or int(time.time()), BODY)


def test_the_readmes_receiver_knows_genuine_from_forged() -> None:
    receiver: dict[str, Any] = {"__name__": "receiver"}
    exec((ROOT / "docs" / "receiver.py").read_text(), receiver)
    verify, secret = receiver["verify"], new_secret()
    assert verify(secret, delivery(secret), BODY)
    assert not verify(secret, delivery(secret), BODY + b" ")
    assert not verify(new_secret(), delivery(secret), BODY)
    assert not verify(secret, delivery(secret, int(time.time()) - 301), BODY)


def test_the_recipe_with_the_library_verifies() -> None:
    secret = new_secret()
    known: dict[str, Any] = {"secret": secret, "body": BODY, "headers": delivery(secret)}
    exec(block("docs/formats.md", "python", "standardwebhooks"), known)
    assert known["event"] == json.loads(BODY)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not on this machine")
def test_the_recipe_for_node_knows_genuine_from_forged() -> None:
    secret = new_secret()
    cases = [
        (secret, delivery(secret), True),
        (new_secret(), delivery(secret), False),
        (secret, delivery(secret, int(time.time()) - 301), False),
    ]
    script = block("docs/formats.md", "js", "function verify") + (
        "const cases = JSON.parse(require('node:fs').readFileSync(0));\n"
        f"const body = Buffer.from({BODY.hex()!r}, 'hex');\n"
        "const verdicts = cases.map(([secret, headers]) => verify(secret, headers, body));\n"
        "console.log(JSON.stringify(verdicts));"
    )
    done = subprocess.run(
        ["node", "-e", script],
        input=json.dumps([case[:2] for case in cases]).encode(),
        capture_output=True,
        timeout=300,
        check=True,
    )
    assert json.loads(done.stdout) == [expected for *_, expected in cases]


def test_the_recipe_for_a_shell_computes_the_signature(tmp_path: Path) -> None:
    secret = new_secret()
    headers = delivery(secret)
    (tmp_path / "body").write_bytes(BODY)
    done = subprocess.run(
        ["sh", "-e", "-c", block("docs/formats.md", "sh", "openssl dgst")],
        cwd=tmp_path,
        env={
            **PLAIN,
            "WEBHOOK_SECRET": secret,
            "WEBHOOK_ID": headers["webhook-id"],
            "WEBHOOK_TIMESTAMP": headers["webhook-timestamp"],
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert f"v1,{done.stdout.strip()}" in headers["webhook-signature"].split()


@pytest.mark.stacks
@pytest.mark.toolbox
def test_the_tour_runs_as_written(stack: RunningStack, tmp_path: Path) -> None:
    port = own_port()
    tour = block("README.md", "sh", "receiver.py").replace("9000", str(port))
    tour = tour.replace("docs/receiver.py", str(ROOT / "docs" / "receiver.py"))
    tour = tour.replace(". .data/client.env", f". {stack.client_env}")
    # Then a reader reads; here the shell waits until the delivery has been recorded.
    waiting = """
    echo
    for _ in $(seq 900); do
      api "$BASE_URL/v1/webhooks/$webhook/accounting" | grep -q '"pending":0' && break
      sleep 0.1
    done
    api "$BASE_URL/v1/webhooks/$webhook/accounting"
    kill $!
    """
    done = subprocess.run(
        ["sh", "-e", "-c", tour + waiting],
        cwd=tmp_path,
        env={**PLAIN, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "genuine evt_" in done.stdout
    assert '"status":"intact"' in done.stdout
    assert "/problems/" not in done.stdout
    books = json.loads(done.stdout.splitlines()[-1])
    assert (books["accepted"], books["succeeded"], books["balanced"]) == (1, 1, True)


@pytest.mark.stacks
@pytest.mark.toolbox
def test_a_new_deployment_delivers_a_finding_and_proves_a_record_as_written(
    stack: RunningStack, tmp_path: Path
) -> None:
    words = block("docs/setup.md", "sh", "export RECEIVER")
    known, caller = {**PLAIN, "BASE_URL": stack.base_url}, stack.fresh_tenant()
    with Receiver() as receiver:
        for example, own in (
            ("svc_…", caller.key),
            ("https://hooks.example.com/records", receiver.url()),
            ("python3", sys.executable),
        ):
            words = words.replace(example, own)
        done = subprocess.run(
            ["sh", "-e", "-c", words + 'echo "$record $TOKEN"'],
            env=known,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert receiver.requests
    record, token = done.stdout.splitlines()[-1].split()
    known |= {"record": record, "TOKEN": token}
    path = f"/v1/records/{record}/evidence.zip"
    until(lambda: caller.ask("GET", path).status_code == 200)
    check = block("README.md", "sh", "verify.py pack.zip").replace("python3", sys.executable)
    done = subprocess.run(
        ["sh", "-e", "-c", check],
        cwd=tmp_path,
        env=known,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("200\n")
    assert done.stdout.endswith("\nVALID\n")


@pytest.mark.stacks
@pytest.mark.toolbox
def test_an_auditor_checks_a_pack_with_the_commands_as_written(
    stack: RunningStack, tmp_path: Path
) -> None:
    caller = stack.fresh_tenant()
    agent = caller.post("/v1/agents", {"name": "an agent"})["id"]
    session = caller.post("/v1/sessions", {"agent_id": agent, "principal": "dana"})["id"]
    said = {"session_id": session, "kind": "refund", "title": "A refund", "content": {}}
    record = caller.post("/v1/records", said)["id"]
    token = caller.post(f"/v1/records/{record}/share-links", {})["url"].rpartition("/")[2]
    found: list[bytes] = []

    def is_packed() -> bool:
        answer = caller.ask("GET", f"/v1/records/{record}/evidence.zip")
        found.append(answer.content)
        return answer.status_code == 200

    until(is_packed)
    with zipfile.ZipFile(io.BytesIO(found[-1])) as archive:
        lines = archive.read("README.txt").decode().splitlines()
    (tmp_path / "PACK.zip").write_bytes(found[-1])
    of_pack = [each for each in lines if re.match("    (curl|[(]echo|python3)", each)]
    assert len(of_pack) == 4
    in_formats = block("docs/formats.md", "sh", "jwks.json") + of_pack[-1]
    scripts = ["\n".join(of_pack), in_formats, block("README.md", "sh", "verify.py pack.zip")]
    for script in scripts:
        done = subprocess.run(
            ["sh", "-e", "-c", script.replace("python3", sys.executable)],
            cwd=tmp_path,
            env={**PLAIN, "BASE_URL": stack.base_url, "record": record, "TOKEN": token},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("\nVALID\n")


@pytest.mark.stacks
@pytest.mark.toolbox
def test_the_recipe_for_the_audit_chain_holds_and_finds_a_change(stack: RunningStack) -> None:
    caller = stack.fresh_tenant()
    caller.post("/v1/keys", {"name": "auditor", "role": "read"})
    export = caller.ask("GET", "/v1/audit", headers={"Accept": "application/x-ndjson"}).content
    recipe = block("docs/formats.md", "python", "trailer")

    def recomputed(exported: bytes) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [sys.executable, "-c", recipe], input=exported, capture_output=True, check=False
        )

    whole = recomputed(export)
    entries, head = export.count(b"\n") - 1, json.loads(export.splitlines()[-1])["head"]["hash"]
    assert whole.stdout.decode() == f"{entries} entries, head {head}\n"
    assert b"entry 3: hash" in recomputed(export.replace(b'"auditor"', b'"auditer"')).stderr
    assert recomputed(b"\n".join(export.splitlines()[:-1])).returncode == 1
    assert caller.get("/v1/audit/verify", seq=entries, hash=head)["status"] == "intact"


@pytest.mark.stacks
@pytest.mark.toolbox
def test_nine_questions_are_answered_by_the_commands_as_written(
    stack: RunningStack, tmp_path: Path
) -> None:
    caller = stack.fresh_tenant()
    agent = caller.post("/v1/agents", {"name": "refund-desk", "version": "2.1"})["id"]
    session = caller.post("/v1/sessions", {"agent_id": agent, "principal": "dana"})["id"]
    approval = {"approved_by": "erin", "at": "2026-01-31T12:00:00Z", "decision": "approved"}
    for number in (1, 2, 3):
        said = {"session_id": session, "kind": "refund", "title": f"Refund {number}"}
        record = caller.post("/v1/records", {**said, "content": {}, "approvals": [approval]})["id"]
        found = {"record_id": record, "rule": "late", "severity": "low", "title": "Late"}
        caller.post("/v1/findings", found)
    caller.post(f"/v1/sessions/{session}/complete", {"outcome": "succeeded"}, 200)
    blocks = [block("docs/auditors.md", "sh", words) for words in ("first()", "# 1.")]
    script = "".join(blocks).replace(". .data/client.env\n", "")
    done = subprocess.run(
        ["sh", "-e", "-c", script.replace("python3", sys.executable)],
        cwd=tmp_path,
        env={**PLAIN, "BASE_URL": stack.base_url, "SERVICE_API_KEY": caller.key},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for answer in (
        "3 of 3",
        '"title": "Late"',
        "Agent:       refund-desk",
        "Approved by: erin: approved",
        "wasAttributedTo",
        "record.html",
        "Signed by:   whom the service says",
        "bundle_retention_days",
        "Signature Verified Successfully",
    ):
        assert answer in done.stdout, answer
    # Other tenants' leaves are in this log, which a period's export cannot vouch for.
    verdicts = re.findall(r"^VALID(?:, WITH 1 NOT CHECKED)?$", done.stdout, re.MULTILINE)
    assert len(verdicts) >= 3, done.stdout
    assert "INVALID" not in done.stdout
    assert "INCOMPLETE" not in done.stdout
