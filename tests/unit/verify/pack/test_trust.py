"""Keys and policies from outside decide what a pack is worth."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack, verify
from app.ledger.notes import Note, Signer, VerifierKey
from app.lib.crypto.signing import SigningKey
from tests.unit.verify import packs, policies
from tests.unit.verify.pack.checking import (
    EVIDENCE,
    PACK,
    TOLD,
    UNKNOWN_PACKER,
    checked,
    files_of,
    in_proof,
    resealed,
    zipped,
)


def test_without_roots_a_pack_is_valid_against_its_own_keys(tmp_path: Path) -> None:
    found = checked(tmp_path, PACK)
    assert (found.code, found.last) == (0, "VALID AGAINST THE PACK'S OWN KEYS")
    assert found.of("NOT CHECKED") == [
        "public-key.pem",
        "pack-key.pem",
        "the log's key",
        *TOLD,
        "cosignatures",
    ]
    assert checked(tmp_path, PACK, "--strict").code == 2


def test_with_roots_from_outside_a_pack_is_valid(tmp_path: Path, roots: list[object]) -> None:
    found = checked(tmp_path, PACK, *roots, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert set(found.verdicts.values()) == {"VALID"}


def test_with_the_key_alone_the_rest_is_told_as_not_checked(
    tmp_path: Path, roots: list[object]
) -> None:
    found = checked(tmp_path, PACK, *roots[:2])
    assert (found.code, found.last) == (0, "VALID, WITH 2 NOT CHECKED")
    assert checked(tmp_path, PACK, *roots[:2], "--strict").code == 2


def test_with_the_policy_alone_the_keys_are_the_packs_own(
    tmp_path: Path, roots: list[object]
) -> None:
    found = checked(tmp_path, PACK, *roots[2:])
    assert (found.code, found.last) == (0, "VALID AGAINST THE PACK'S OWN KEYS")


@pytest.mark.parametrize("seed", ["bundle", "empty"])
def test_a_plain_pack_needs_no_others(tmp_path: Path, roots: list[object], seed: str) -> None:
    evidence = packs.evidence(others=0, index=0) if seed == "empty" else packs.evidence()
    (tmp_path / "policy").write_text(f"log {packs.LOG.verifier_key}\nquorum none\n")
    found = checked(tmp_path, b"".join(pack.write(evidence)), *roots, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text


def test_another_key_from_outside_refuses_the_pack(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(packs.NEXT_KEY.public.pem)
    found = checked(tmp_path, PACK, "--key", tmp_path / "key.pem")
    assert found.of("INVALID") == ["public-key.pem", "pack-key.pem"]
    assert found.code == 1


def test_a_key_that_was_rotated_must_be_given_too(tmp_path: Path, roots: list[object]) -> None:
    data = b"".join(pack.write(packs.evidence(pack_key=packs.NEXT_KEY, witnesses=[9, 10])))
    found = checked(tmp_path, data, *roots)
    assert found.of("NOT CHECKED") == ["pack-key.pem", *TOLD]
    assert (found.code, found.last) == (0, f"VALID, WITH 6 NOT CHECKED; {UNKNOWN_PACKER}")
    assert checked(tmp_path, data, *roots, "--strict").code == 2
    (tmp_path / "next.pem").write_bytes(packs.NEXT_KEY.public.pem)
    found = checked(tmp_path, data, *roots, "--key", tmp_path / "next.pem", "--strict")
    assert (found.code, found.last) == (0, "VALID")
    # The key of the pack alone says nothing for the bundle's.
    found = checked(tmp_path, data, "--key", tmp_path / "next.pem")
    assert found.of("INVALID") == ["public-key.pem"]


def test_the_quorum_decides(tmp_path: Path, roots: list[object]) -> None:
    one = b"".join(pack.write(packs.evidence(witnesses=[9, 77])))
    found = checked(tmp_path, one, *roots)
    assert (found.code, found.of("INCOMPLETE")) == (1, ["cosignatures"])
    none = b"".join(pack.write(packs.evidence()))
    assert checked(tmp_path, none, *roots).of("INCOMPLETE") == ["cosignatures"]
    note = Note.parse(EVIDENCE.checkpoint)
    wrong = replace(EVIDENCE, cosignatures=[packs.cosign(9, note.text + "x\n")])
    found = checked(tmp_path, b"".join(pack.write(wrong)), *roots)
    assert found.of("INVALID") == ["cosignatures"]
    # Of a witness that the policy does not list, it says nothing.
    wrong = replace(EVIDENCE, cosignatures=[*EVIDENCE.cosignatures, packs.cosign(77, "x\n")])
    assert checked(tmp_path, b"".join(pack.write(wrong)), *roots).last == "VALID"


def test_a_witness_of_another_algorithm_is_not_counted(tmp_path: Path, roots: list[object]) -> None:
    key = VerifierKey("w", bytes(4), 0x06, bytes(1312))
    (tmp_path / "policy").write_text(f"log {packs.LOG.verifier_key}\nwitness w {key}\nquorum w\n")
    line = replace(EVIDENCE.cosignatures[0], name="w", key_hash=bytes(4))
    data = b"".join(pack.write(replace(EVIDENCE, cosignatures=[line])))
    assert checked(tmp_path, data, *roots).of("INCOMPLETE") == ["cosignatures"]


def test_a_policy_may_name_other_logs_and_keys_that_are_not_checked(
    tmp_path: Path, roots: list[object]
) -> None:
    by_9 = packs.witness_key(9)
    (tmp_path / "policy").write_text(policies.OTHERS.replace(policies.X1, str(by_9)))
    found = checked(tmp_path, PACK, *roots, "--strict")
    # They are told of, and what the pack needs is met without them.
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert found.of("NOT CHECKED") == [f"policy line {number}" for number in (3, 4, 5, 6)]
    assert "a log with a key of the type 02, which is not checked here" in found.text
    assert "a witness with a key of the type 06, which is not checked here" in found.text


def test_a_log_that_the_policy_knows_by_another_type_of_key_is_not_checked(
    tmp_path: Path, roots: list[object]
) -> None:
    key = replace(policies.ECDSA, name=packs.ORIGIN)
    (tmp_path / "policy").write_text(f"log {packs.OTHER_LOG}\nlog {key}\nquorum none\n")
    found = checked(tmp_path, PACK, *roots)
    assert (found.code, found.verdicts["the log's key"]) == (0, "NOT CHECKED"), found.text
    assert checked(tmp_path, PACK, *roots, "--strict").code == 2
    (tmp_path / "policy").write_text(f"log {packs.OTHER_LOG}\nquorum none\n")
    assert checked(tmp_path, PACK, *roots).of("INVALID") == ["the log's key"]


def test_a_log_that_the_policy_does_not_list_is_refused(
    tmp_path: Path, roots: list[object]
) -> None:
    other = Signer(packs.ORIGIN, packs.private_key(50))
    data = b"".join(pack.write(packs.evidence(log=other, witnesses=[9, 10])))
    found = checked(tmp_path, data, *roots)
    assert (found.code, found.of("INVALID")) == (1, ["the log's key"])


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
