"""Key sets as the service publishes them, and keys that must not count."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack, verify
from app.ledger.notes import Note
from app.lib.crypto.signing import SigningKey
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import (
    EVIDENCE,
    PACK,
    checked,
    files_of,
    in_proof,
    resealed,
    zipped,
)


def jwk(key: Any, **others: Any) -> dict[str, Any]:
    return {**key.public.jwk, "purpose": "bundle", "created_at": "…", "retired_at": None, **others}


def jwks(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


LOG_JWK = jwk(SigningKey(bytes(range(2, 34))), purpose="log", vkey=str(packs.LOG.verifier_key))
FOREIGN = [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}, {"kty": "OKP", "crv": "X25519", "x": "AA"}]


def test_a_set_of_keys_is_taken_as_the_service_publishes_it(
    tmp_path: Path, roots: list[object]
) -> None:
    data = b"".join(pack.write(packs.evidence(pack_key=packs.NEXT_KEY, witnesses=[9, 10])))
    (tmp_path / "keys.json").write_bytes(
        jwks(LOG_JWK, *FOREIGN, jwk(packs.KEY), jwk(packs.NEXT_KEY, purpose="bundle"))
    )
    options = ["--key", tmp_path / "keys.json", *roots[2:], "--strict"]
    found = checked(tmp_path, data, *options)
    assert (found.code, found.last) == (0, "VALID"), found.text
    bare = {name: packs.KEY.public.jwk[name] for name in ("kty", "crv", "x")}
    (tmp_path / "keys.json").write_bytes(jwks(bare))
    assert checked(tmp_path, PACK, *options).code == 0
    (tmp_path / "keys.json").write_bytes(jwks(jwk(packs.NEXT_KEY)))
    assert checked(tmp_path, PACK, *options).of("INVALID") == ["public-key.pem", "pack-key.pem"]


def test_the_key_of_a_log_signs_no_bundle(tmp_path: Path) -> None:
    key = SigningKey(bytes(range(2, 34)))
    (tmp_path / "keys.json").write_bytes(jwks(LOG_JWK, jwk(packs.KEY)))
    data = b"".join(pack.write(packs.evidence(key=key)))
    found = checked(tmp_path, data, "--key", tmp_path / "keys.json")
    assert found.of("INVALID") == ["public-key.pem", "pack-key.pem"]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":[1]}',
        b'{"keys":[],"keys":[]}',
        jwks(LOG_JWK),
        jwks(*FOREIGN),
        jwks(jwk(packs.KEY), jwk(packs.NEXT_KEY, x="A" * 44)),
        jwks(jwk(packs.KEY, x="A" * 42 + "B")),
        jwks(jwk(packs.KEY, x=packs.KEY.public.jwk["x"] + "=")),
        jwks(jwk(packs.KEY, x=1)),
        json.dumps(packs.KEY.public.jwk).encode(),
    ],
)
def test_a_set_without_a_key_that_could_be_used_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "keys.json").write_bytes(data)
    found = checked(tmp_path, PACK, "--key", tmp_path / "keys.json")
    assert (found.code, found.last[:18]) == (2, "COULD NOT BE READ:")
    assert "keys.json" in found.last


def test_a_forger_cannot_put_his_own_bundle_under_a_key_that_is_known(
    tmp_path: Path, roots: list[object]
) -> None:
    forged = packs.evidence(key=packs.NEXT_KEY)
    files = files_of(b"".join(pack.write(forged)))
    assert checked(tmp_path, zipped(files), *roots).code == 1
    # With the known key's file in it, its id does not fit, nor do the signatures.
    files["public-key.pem"] = files["pack-key.pem"] = packs.KEY.public.pem
    found = checked(tmp_path, resealed(files, packs.NEXT_KEY), *roots)
    assert {"SHA256SUMS.sig", "bundle.sig", "bundle.json"} <= set(found.of("INVALID"))


@pytest.mark.parametrize(
    "point",
    [b"\x01" + bytes(31), bytes(32), bytes(31) + b"\x80", b"\xec" + b"\xff" * 30 + b"\x7f"],
)
def test_a_key_that_verifies_anything_is_no_key(point: bytes) -> None:
    neutral = b"\x01" + bytes(31)
    for message in (b"a", b"b", b"c", b"d"):
        assert not verify.ed25519_verifies(point, neutral + bytes(32), message)


def test_a_checkpoint_of_another_origin_under_the_logs_key_is_refused(tmp_path: Path) -> None:
    text = EVIDENCE.cosigned.text.replace(packs.ORIGIN, "log.example/other", 1)
    note = str(Note(text, (packs.LOG.sign(text),)))
    found = checked(tmp_path, resealed(files_of(PACK) | {"anchor.json": in_proof(checkpoint=note)}))
    assert "of another log" in found.text
    assert found.code == 1


def test_large_nonsense_is_refused_in_good_time(tmp_path: Path) -> None:
    pem = b"-----BEGIN PUBLIC KEY-----" + b"\n " * 400_000
    files = files_of(PACK) | {"public-key.pem": pem, "anchor.json": b'"' + b"\\n" * 500_000}
    files |= {"prov.json": b'"rs:sha256":"' * 100_000}
    assert checked(tmp_path, resealed(files)).code == 1
