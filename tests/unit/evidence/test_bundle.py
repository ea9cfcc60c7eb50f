"""The bundle: its exact bytes, its signature as OpenSSL sees it, and what must never be signed."""

import base64
import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from hypothesis import given, settings
from hypothesis import strategies as st

from app.evidence import bundle
from app.evidence.bundle import NotABundle
from app.lib.crypto.signing import PublicKey, SigningKey
from tests.unit.evidence import records
from tests.unit.evidence.records import RECORD, golden, made_of, step

NONCE = re.compile(rb'"nonce":"([A-Za-z0-9_-]{43})"')


def test_a_bundle_s_bytes_never_change() -> None:
    kept = golden("bundle-v2.json")
    read = bundle.read(kept)
    parts = (read["record"], read["content"], read["steps"], read["approvals"])
    again = bundle.write(*parts, key_id=read["key_id"])
    assert NONCE.sub(b"", again) == NONCE.sub(b"", kept)


@given(records.metadata_v1, records.values, st.lists(records.steps_v1, max_size=3))
@settings(max_examples=40)
def test_a_bundle_of_version_1_is_read_with_all_that_it_says(
    record: Any, content: Any, steps: list[Any]
) -> None:
    raw = records.written_v1(record, content, steps)
    read = bundle.read(raw, "Loans")
    assert (read["schema"], read["content"]) == ("records/bundle/v1", content)
    assert read["steps"] == json.loads(raw)["steps"]
    expected = dict(record)
    expected["session"] = {"id": expected.pop("session_id")}
    expected["agent"] = {"id": expected.pop("agent_id"), "name": "Loans"}
    assert read["record"] == expected
    spoiled: list[dict[str, Any]] = [
        {"approvals": []},
        {"steps": [step("a", span_id="1" * 16, attributes={}, events=[])]},
    ]
    for beside in spoiled:
        changed = {**json.loads(raw), **beside}
        with pytest.raises(NotABundle):
            bundle.read(json.dumps(changed).encode())


def test_a_bundle_s_signature_of_once_is_still_good() -> None:
    pem = load_pem_public_key(golden("public-key.pem"))
    assert isinstance(pem, Ed25519PublicKey)
    key = PublicKey(pem.public_bytes_raw())
    assert key.id == bundle.read(golden("bundle.json"))["key_id"]
    assert key.verifies(golden("bundle.sig"), golden("bundle.json"))


@given(
    records.metadata,
    records.values,
    st.lists(records.steps, max_size=3),
    st.lists(records.approvals, max_size=2),
)
@settings(max_examples=40)
def test_what_is_written_is_canonical_and_reads_back_as_it_was(
    record: Any, content: Any, steps: list[Any], approvals: list[Any]
) -> None:
    raw = bundle.write(record, content, steps, approvals, key_id="0123456789abcdef")
    read = bundle.read(raw)
    assert raw == rfc8785.dumps(json.loads(raw))
    assert (read["schema"], read["key_id"]) == ("records/bundle/v2", "0123456789abcdef")
    assert (read["record"], read["content"]) == (record, content)
    assert read.get("approvals", []) == approvals
    for given_step, read_step in zip(steps, read["steps"], strict=True):
        events = [{"attributes": {}} | event for event in given_step.get("events", [])]
        expected = {"attributes": {}} | given_step | {"events": events}
        if "links" in given_step:
            expected["links"] = [{"attributes": {}} | link for link in given_step["links"]]
        assert read_step == expected


def test_every_bundle_has_a_nonce_of_its_own() -> None:
    nonces = {made_of()["nonce"] for _ in range(50)}
    assert len(nonces) == 50
    assert {len(base64.urlsafe_b64decode(nonce + "=")) for nonce in nonces} == {32}
    assert all(NONCE.fullmatch(b'"nonce":"%b"' % nonce.encode()) for nonce in nonces)


def test_a_content_as_deep_as_a_request_may_be_is_written() -> None:
    deepest: Any = None
    for _ in range(127):
        deepest = [deepest]
    raw = bundle.write(RECORD, deepest, [], key_id="")
    assert bundle.read(raw)["content"] == deepest
    with pytest.raises(NotABundle, match="128 levels"):
        bundle.write(RECORD, [deepest], [], key_id="")


@pytest.mark.parametrize("content", [float("nan"), 2**53, 1e17, "\ud800", {"\udfff": 1}, {1: 2}])
def test_what_could_not_be_read_back_is_never_written(content: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        bundle.write(RECORD, content, [], key_id="")


WHOLE = made_of(
    step(
        "one",
        inputs=["a"],
        events=[{"name": "e", "at": RECORD["created_at"]}],
        span_id="1" * 16,
        links=[{"trace_id": "2" * 32, "span_id": "3" * 16}],
    ),
    approvals=[{"approved_by": "dana", "at": RECORD["created_at"], "decision": "approved"}],
    trace_id="2" * 32,
    models=["m-4"],
)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/schema", "records/bundle/v3"),
        ("/nonce", None),
        ("/record", []),
        ("/record/title", None),
        ("/record/labels", {"team": 1}),
        ("/record/occurred_at", "yesterday"),
        ("/record/occurred_at", None),
        ("/record/session", "ses_1"),
        ("/record/session/id", None),
        ("/record/agent", {"id": "agt_1"}),
        ("/record/agent/name", None),
        ("/record/agent/name", {"id": "agt_1", "name": "n", "more": ""}),
        ("/record/trace_id", "0" * 32),
        ("/record/trace_id", "A" * 32),
        ("/record/models", "m-4"),
        ("/record/models", [1]),
        ("/steps/0/span_id", "1" * 15),
        ("/steps/0/span_id", "0" * 16),
        ("/steps/0/parent_span_id", None),
        ("/steps/0/ended_at", None),
        ("/steps/0/links", {}),
        ("/steps/0/links/0", {"trace_id": "2" * 32, "span_id": "3" * 16}),
        ("/steps/0/links/0/trace_id", "2" * 16),
        ("/steps/0/links/0/attributes", None),
        ("/approvals", None),
        ("/approvals/0", {}),
        ("/approvals/0/at", "now"),
        ("/approvals/0/decision", True),
        ("/approvals/0/note", None),
        ("/record/created_at", None),
        ("/steps", {}),
        ("/steps/0", "one"),
        ("/steps/0/name", 1),
        ("/steps/0/status", "OK"),
        ("/steps/0/started_at", "2026-01-31"),
        ("/steps/0/attributes", []),
        ("/steps/0/inputs", "a"),
        ("/steps/0/inputs", [1]),
        ("/steps/0/outputs", None),
        ("/steps/0/events", None),
        ("/steps/0/events/0/at", "now"),
        ("/steps/0/events/0/attributes", None),
    ],
)
def test_a_bundle_of_another_shape_is_refused_with_the_place(pointer: str, value: Any) -> None:
    changed: Any = copy.deepcopy(WHOLE)
    *path, last = pointer.split("/")[1:]
    parent = changed
    for name in path:
        parent = parent[int(name) if isinstance(parent, list) else name]
    parent[int(last) if isinstance(parent, list) else last] = value
    with pytest.raises(NotABundle) as refusal:
        bundle.read(json.dumps(changed).encode())
    assert refusal.value.pointer.startswith(pointer)


@pytest.mark.parametrize("name", ["nonce", "record", "steps", "content"])
def test_a_bundle_without_one_of_its_members_is_refused(name: str) -> None:
    changed = {key: value for key, value in WHOLE.items() if key != name}
    with pytest.raises(NotABundle, match="the bundle: Its members"):
        bundle.read(json.dumps(changed).encode())


def test_a_bundle_with_a_member_too_many_is_refused() -> None:
    with pytest.raises(NotABundle):
        bundle.read(json.dumps({**WHOLE, "more": 1}).encode())


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{", b'{"schema":1,"schema":2}', b"\xff"])
def test_what_is_no_bundle_at_all_is_refused(raw: bytes) -> None:
    with pytest.raises(NotABundle):
        bundle.read(raw)


def test_the_signature_travels_in_a_header_that_names_its_key() -> None:
    assert bundle.signature_header("0123456789abcdef", b"\xfb" * 64) == (
        'keyid="0123456789abcdef", alg="ed25519", sig="' + "+/v7" * 21 + '+w=="'
    )


def _openssl_version() -> tuple[int, ...]:
    if shutil.which("openssl") is None:
        return ()
    told = subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True)
    found = re.match(r"OpenSSL (\d+)\.(\d+)", told.stdout)
    return tuple(map(int, found.groups())) if found else ()


@pytest.mark.skipif(_openssl_version() < (3, 0), reason="needs OpenSSL 3 for `pkeyutl -rawin`")
def test_openssl_verifies_a_bundle_and_refuses_a_changed_one(tmp_path: Path) -> None:
    key = SigningKey.generate()
    raw = bundle.write(RECORD, {"amount": "4870.00"}, [], key_id=key.public.id)
    (tmp_path / "bundle.json").write_bytes(raw)
    (tmp_path / "bundle.sig").write_bytes(key.sign(raw))
    (tmp_path / "public-key.pem").write_bytes(key.public.pem)
    command = (
        "openssl pkeyutl -verify -pubin -inkey public-key.pem -rawin"
        " -in bundle.json -sigfile bundle.sig"
    )
    good = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False)
    assert (good.returncode, good.stdout) == (0, b"Signature Verified Successfully\n")

    (tmp_path / "bundle.json").write_bytes(raw.replace(b"4870.00", b"4870.01"))
    bad = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False)
    assert bad.returncode == 1
