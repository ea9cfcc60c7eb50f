"""The bundle: its exact bytes, its signature as OpenSSL sees it, and what must never be signed."""

import base64
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
from app.lib.crypto.signing import PublicKey, SigningKey
from tests.unit.evidence import records
from tests.unit.evidence.records import RECORD, golden, made_of

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
    with pytest.raises(ValueError, match="128 levels"):
        bundle.write(RECORD, [deepest], [], key_id="")


@pytest.mark.parametrize("content", [float("nan"), 2**53, 1e17, "\ud800", {"\udfff": 1}, {1: 2}])
def test_what_could_not_be_read_back_is_never_written(content: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        bundle.write(RECORD, content, [], key_id="")


@pytest.mark.parametrize(
    "raw", [b"[]", b"null", b"{", b'{"schema":"records/bundle/v3"}', b'{"schema":1,"schema":2}']
)
def test_what_is_no_bundle_at_all_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
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
