"""`verify.py` on packs: what is good, and every way to spoil, forge and hide."""

import hashlib
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.evidence import pack, verify
from app.evidence.pack import Timestamp
from app.evidence.pack.archive import Archive, of_bytes
from app.ledger import leaves
from app.ledger.notes import Note, Signer, VerifierKey
from app.lib import canonical_json
from app.lib.crypto.signing import SigningKey
from tests.support.evidence.verifying import Answer, answer
from tests.unit.verify import packs
from tests.unit.verify.authorities import authority, gen_time

EVIDENCE = packs.evidence(witnesses=[9, 10])
PACK = b"".join(pack.write(EVIDENCE))
VERIFIER = Path(verify.__file__)
POLICY = f"""log {packs.LOG.verifier_key}
witness a {packs.witness_key(9)}
witness b {packs.witness_key(10)}
witness c {packs.witness_key(11)}
group g 2 a b c
quorum g
"""


@pytest.fixture
def roots(tmp_path: Path) -> list[object]:
    """Whom an auditor believes: the service's key, and a policy."""
    (tmp_path / "key.pem").write_bytes(packs.KEY.public.pem)
    (tmp_path / "policy").write_text(POLICY)
    return ["--key", tmp_path / "key.pem", "--policy", tmp_path / "policy"]


def checked(folder: Path, data: bytes, *arguments: object) -> Answer:
    (folder / "pack.zip").write_bytes(data)
    return answer(folder / "pack.zip", *arguments)


def files_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


def zipped(files: dict[str, bytes]) -> bytes:
    """A ZIP as our writer makes it, of whatever files."""
    return b"".join(Archive(of_bytes(name, data) for name, data in files.items()))


def resealed(files: dict[str, bytes], key: Any = packs.KEY, **manifest: Any) -> bytes:
    """A pack of these files whose sums and manifest are right, and signed by this key."""
    files = {name: data for name, data in files.items() if not name.startswith("SHA256SUMS")}
    told = json.loads(files.pop("manifest.json")) | manifest
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    files["SHA256SUMS"] = "".join(lines).encode()
    files["SHA256SUMS.sig"] = key.sign(files["SHA256SUMS"])
    told["files"] = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name, data in files.items()
    }
    return zipped(files | {"manifest.json": canonical_json.dumps(told)})


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


TOLD = ["prov.json", "README.txt", "release"]
"""What nothing but the signature of whoever packed speaks for."""
UNKNOWN_PACKER = "THE BUNDLE IS BY YOUR KEY, WHO PACKED IT IS NOT KNOWN"


def test_a_key_that_was_rotated_must_be_given_too(tmp_path: Path, roots: list[object]) -> None:
    data = b"".join(pack.write(packs.evidence(pack_key=packs.NEXT_KEY, witnesses=[9, 10])))
    found = checked(tmp_path, data, *roots)
    assert found.of("NOT CHECKED") == ["pack-key.pem", *TOLD]
    assert (found.code, found.last) == (0, f"VALID, WITH 4 NOT CHECKED; {UNKNOWN_PACKER}")
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


def test_a_log_that_the_policy_does_not_list_is_refused(
    tmp_path: Path, roots: list[object]
) -> None:
    other = Signer(packs.ORIGIN, packs.private_key(50))
    data = b"".join(pack.write(packs.evidence(log=other, witnesses=[9, 10])))
    found = checked(tmp_path, data, *roots)
    assert (found.code, found.of("INVALID")) == (1, ["the log's key"])


# One bit.


def everywhere(data: bytes) -> Iterator[tuple[str, int]]:
    """Places in a pack, with the file that each is in: all of small files, some of large ones."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        places = [
            (each.header_offset, each.filename, each.file_size) for each in archive.infolist()
        ]
    end = places[-1][0] + 30 + len(places[-1][1]) + places[-1][2]
    for offset, name, size in places:
        start = offset + 30 + len(name)
        yield from ((name, at) for at in range(offset, start))
        step = 1 if size < 100 else size // 25
        yield from ((name, at) for at in range(start, start + size, step))
    yield from (("archive", at) for at in range(end, len(data), 5))


def test_one_flipped_bit_anywhere_is_refused_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "pack.zip"
    for number, (name, at) in enumerate(everywhere(PACK)):
        spoiled = bytearray(PACK)
        spoiled[at] ^= 1 << number % 8
        path.write_bytes(spoiled)
        found = answer(path)
        assert found.code in (1, 2), (name, at)
        if name != "archive" and found.code == 1 and at > 4:
            line = next(line for line in found.text.splitlines() if line.startswith("INVALID"))
            assert name in line or "no name of a file" in line, (name, at, line)


@pytest.mark.parametrize("name", sorted(files_of(PACK)))
def test_one_flipped_bit_in_a_folder_is_refused_with_the_files_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(PACK)
    for other, data in files.items():
        (tmp_path / other).write_bytes(data)
    monkeypatch.setattr(verify, "__file__", str(tmp_path / "verify.py"))
    assert answer().code == 0
    data = files[name]
    for number, at in enumerate({0, len(data) // 3, len(data) // 2, len(data) - 1}):
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << number % 8
        (tmp_path / name).write_bytes(spoiled)
        found = answer()
        assert found.code == 1
        assert name in found.text.splitlines()[-1], found.text


def test_a_file_that_is_missing_is_incomplete_and_one_too_many_invalid(tmp_path: Path) -> None:
    files = files_of(PACK)
    for name in files:
        rest = {other: data for other, data in files.items() if other != name}
        found = checked(tmp_path, zipped(rest))
        assert found.code == 1
        assert name in found.text
        assert "INCOMPLETE" in found.verdicts.values()
    found = checked(tmp_path, zipped(files | {"notes.txt": b""}))
    assert found.code == 1
    assert "notes.txt" in found.text


def test_a_signature_of_another_bundle_is_refused(tmp_path: Path) -> None:
    other = files_of(b"".join(pack.write(packs.evidence(packs.bundle_of(8)))))
    files = files_of(PACK)
    found = checked(tmp_path, resealed(files | {"bundle.sig": other["bundle.sig"]}))
    assert found.of("INVALID") == ["bundle.sig"]


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["bundle.json", "bundle.sig"], {"inclusion", "manifest.json", "prov.json"}),
        (["prov.json"], {"prov.json"}),
        (["anchor.json"], {"inclusion", "checkpoint", "record.tlog-proof", "manifest.json"}),
        (["record.tlog-proof"], {"record.tlog-proof"}),
        (["checkpoint"], {"checkpoint"}),
        (
            ["anchor.json", "record.tlog-proof", "checkpoint"],
            {"inclusion", "manifest.json"},
        ),
        (["public-key.pem"], {"bundle.json", "bundle.sig"}),
        (["pack-key.pem"], {"SHA256SUMS.sig", "manifest.json"}),
    ],
)
def test_parts_of_another_pack_do_not_fit(
    tmp_path: Path, names: list[str], refused: set[str]
) -> None:
    if names[0].endswith(".pem"):
        other = packs.evidence(key=packs.NEXT_KEY)
    else:
        other = packs.evidence(packs.bundle_of(8), others=6)
    strange = files_of(b"".join(pack.write(other)))
    files = files_of(PACK) | {name: strange[name] for name in names}
    found = checked(tmp_path, resealed(files))
    assert found.code == 1
    assert set(found.of("INVALID")) == refused, found.text


def test_another_records_manifest_is_refused(tmp_path: Path) -> None:
    for told in (
        {"record_id": packs.record(8)["id"]},
        {"release": "9.9.9"},
        {"pack_key_id": packs.NEXT_KEY.public.id},
        {"checkpoint": {"origin": packs.ORIGIN, "size": 7, "root": "00" * 32}},
    ):
        found = checked(tmp_path, resealed(files_of(PACK), **told))
        assert found.of("INVALID") == ["manifest.json"]


def test_a_forger_with_a_log_and_pack_key_of_his_own_is_told_as_nobody_that_is_known(
    tmp_path: Path, roots: list[object]
) -> None:
    """A true bundle, said to be in a log that is nobody's, under a key "rotated since"."""
    log = Signer(packs.ORIGIN, packs.private_key(66))
    forged = packs.evidence(EVIDENCE.bundle, pack_key=packs.NEXT_KEY, log=log)
    data = b"".join(pack.write(forged))
    found = checked(tmp_path, data, *roots[:2])
    assert re.fullmatch(f"VALID, WITH [0-9]+ NOT CHECKED; {UNKNOWN_PACKER}", found.last)
    assert {"pack-key.pem", "the log's key"} <= set(found.of("NOT CHECKED"))
    assert checked(tmp_path, data, *roots[:2], "--strict").code == 2
    assert checked(tmp_path, data, *roots).code == 1


def test_what_only_the_packer_tells_is_not_checked_unless_he_is_known(
    tmp_path: Path, roots: list[object]
) -> None:
    """A true bundle and log, packed again by somebody else with words of his own."""
    true = packs.evidence(pack_key=packs.NEXT_KEY, witnesses=[9, 10], release="99.9")
    files = files_of(b"".join(pack.write(true)))
    files["prov.json"] = files["prov.json"].replace(b"ana%40example", b"eve%40example")
    files["README.txt"] = files["README.txt"].replace(b"openssl pkeyutl", b"echo Verified #")
    data = resealed(files, packs.NEXT_KEY)
    found = checked(tmp_path, data, *roots)
    assert (found.code, found.of("NOT CHECKED")) == (0, ["pack-key.pem", *TOLD]), found.text
    assert found.last == f"VALID, WITH 4 NOT CHECKED; {UNKNOWN_PACKER}"
    assert "release: 99.9" in found.text
    assert checked(tmp_path, data, *roots, "--strict").code == 2
    files["prov.json"] = files["prov.json"].replace(b'"rs:sha256":"', b'"rs:sha256":"0')
    assert checked(tmp_path, resealed(files, packs.NEXT_KEY), *roots).of("INVALID") == ["prov.json"]


@pytest.mark.parametrize(
    "said",
    [
        "the service's own log alone",
        "the service's own log, with one cosignature",
        "the service's own log, with a timestamp of 2019-01-01T00:00:00.000000Z and 2 cosignatures",
        "the service's own log, with 3 cosignatures",
        None,
    ],
)
def test_what_anchors_a_pack_is_held_to_what_is_there(tmp_path: Path, said: Any) -> None:
    anchor = anchor_with(lambda value: value.update(anchored_by=said))
    found = checked(tmp_path, resealed(files_of(PACK) | {"anchor.json": anchor}))
    assert (found.code, found.verdicts["anchor.json"]) == (1, "INVALID")


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_verifier_knows_every_sentence_on_what_anchors_a_pack(
    tmp_path: Path, count: int, stamped: bool
) -> None:
    by = authority("p256")
    evidence = packs.evidence(witnesses=[9, 10][:count])
    if stamped:
        response = by.stamp_by_openssl(evidence.checkpoint, tmp_path)
        evidence = replace(evidence, timestamp=Timestamp(response, gen_time(response), by.chain))
    found = checked(tmp_path, b"".join(pack.write(evidence)))
    assert (found.code, found.verdicts["anchor.json"]) == (0, "VALID"), found.text


# Keys as the service publishes them.


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
    text = EVIDENCE.proof.checkpoint.text.replace(packs.ORIGIN, "log.example/other", 1)
    note = str(Note(text, (packs.LOG.sign(text),)))
    found = checked(tmp_path, resealed(files_of(PACK) | {"anchor.json": in_proof(checkpoint=note)}))
    assert "of another log" in found.text
    assert found.code == 1


def test_large_nonsense_is_refused_in_good_time(tmp_path: Path) -> None:
    pem = b"-----BEGIN PUBLIC KEY-----" + b"\n " * 400_000
    files = files_of(PACK) | {"public-key.pem": pem, "anchor.json": b'"' + b"\\n" * 500_000}
    files |= {"prov.json": b'"rs:sha256":"' * 100_000}
    assert checked(tmp_path, resealed(files)).code == 1


# What JSON could hide.


def anchor_with(change: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(files_of(PACK)["anchor.json"])
    change(value)
    return canonical_json.dumps(value)


def in_proof(**changes: Any) -> bytes:
    return anchor_with(lambda value: value["log_proof"].update(changes))


NAMED_TWICE = files_of(PACK)["anchor.json"].replace(b'"schema"', b'"schema":"x","schema"')
DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    "anchor",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"\xef\xbb\xbf" + files_of(PACK)["anchor.json"],
        files_of(PACK)["anchor.json"] + b"\n",
        NAMED_TWICE,
        DEEP,
        b'{"a":' * 100_000,
        b"9" * 100_000,
        b"1e999",
        b"-NaN",
        b"Infinity",
        b'"\\ud800"',
        in_proof(leaf_index=2),
        in_proof(leaf_index=-1),
        in_proof(leaf_index=True),
        in_proof(leaf_index=3.5),
        in_proof(leaf_index="3"),
        in_proof(leaf_index=2**53 - 1),
        in_proof(tree_size=7),
        in_proof(leaf_hash="AA" * 32),
        in_proof(leaf_hash="00" * 32),
        in_proof(leaf_data="AAA="),
        in_proof(leaf_data=b64encode(leaves.Record(bytes(32)).data).decode()),
        in_proof(inclusion=[]),
        in_proof(inclusion=["00" * 32] * 3),
        in_proof(inclusion=["00" * 31] * 3),
        in_proof(inclusion=["0" * 63] * 3),
        in_proof(inclusion=["00" * 32] * 100),
        in_proof(inclusion={}),
        in_proof(checkpoint=""),
        in_proof(checkpoint="\n\n\n"),
        in_proof(checkpoint=str(EVIDENCE.proof.checkpoint)),
        in_proof(checkpoint=EVIDENCE.checkpoint.decode().replace("\n6\n", "\n06\n")),
        in_proof(checkpoint=EVIDENCE.checkpoint.decode().replace("\n6\n", "\n7\n")),
        in_proof(more=1),
        anchor_with(lambda value: value.update(vkey=str(packs.witness_key(9)))),
        anchor_with(lambda value: value.update(vkey="x+00000000+AAAA")),
        anchor_with(lambda value: value.update(vkey=None)),
        anchor_with(lambda value: value.update(schema="records/anchor/v2")),
        anchor_with(lambda value: value.update(timestamp={})),
        anchor_with(lambda value: value.update(cosignatures=["x"])),
        anchor_with(lambda value: value.update(cosignatures=[EVIDENCE.checkpoint.decode()])),
        anchor_with(lambda value: value.update(release=1)),
        anchor_with(lambda value: value.pop("release")),
    ],
    ids=lambda anchor: hashlib.sha256(anchor).hexdigest()[:8],
)
def test_an_anchor_that_is_not_exactly_one_is_refused(tmp_path: Path, anchor: bytes) -> None:
    found = checked(tmp_path, resealed(files_of(PACK) | {"anchor.json": anchor}))
    assert found.code == 1, found.text
    assert found.verdicts["anchor.json"] == "INVALID" or "inclusion" in found.of("INVALID")


@pytest.mark.parametrize(
    "manifest", [b"", b"{}", b"[]", DEEP, b'{"files":{}}', b"1" * 5000, b'{"a":1,"a":1}']
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, manifest: bytes) -> None:
    found = checked(tmp_path, zipped(files_of(PACK) | {"manifest.json": manifest}))
    assert found.code == 1
    assert found.verdicts["manifest.json"] == "INVALID"


def test_numbers_and_names_of_a_bundle_survive_their_canonical_form(tmp_path: Path) -> None:
    content = {
        "numbers": [0.1, -0.0, 1e-7, 1e21, 123456789012345680000.0 * 10, 5e-324, 1.5, 0.000001],
        "\U00010000": 1,
        "\ue000": 2,
        "é": [True, False, None],
    }
    data = b"".join(pack.write(packs.evidence(packs.bundle_of(content=content))))
    assert checked(tmp_path, data).code == 0


# What a ZIP could hide.


def patched(at: int, value: bytes) -> bytes:
    return PACK[:at] + value + PACK[at + len(value) :]


END = len(PACK) - 22
DIRECTORY = int.from_bytes(PACK[END + 16 : END + 20], "little")


def by_zipfile(change: Callable[[zipfile.ZipFile], object], **options: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:
        for name, data in files_of(PACK).items():
            archive.writestr(zipfile.ZipInfo(name), data, options.get("compression"))
        change(archive)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        PACK + b"\0",
        b"\0" + PACK,
        PACK[:-1],
        PACK[: len(PACK) // 2],
        PACK[:22],
        PACK + PACK,
        b"",
        b"PK",
        PACK[END:],
        patched(END + 20, b"\x01\x00") + b"x",
        patched(END + 10, b"\xff\xff"),
        patched(END + 8, b"\xff\xff\xff\xff"),
        patched(END + 16, b"\xff\xff\xff\xff"),
        patched(END + 12, b"\xff\xff\xff\xff"),
        patched(END + 16, (DIRECTORY - 46).to_bytes(4, "little")),
        PACK[:DIRECTORY] + b"hidden" + PACK[DIRECTORY:],
        PACK[:DIRECTORY]
        + b"hidden"
        + PACK[DIRECTORY:END]
        + PACK[END : END + 16]
        + (DIRECTORY + 6).to_bytes(4, "little")
        + b"\0\0",
        by_zipfile(lambda _: None),
        by_zipfile(lambda _: None, compression=zipfile.ZIP_DEFLATED),
        by_zipfile(lambda archive: setattr(archive, "comment", b"hidden")),
        by_zipfile(lambda archive: archive.writestr("../evil", b"")),
        by_zipfile(lambda archive: archive.writestr("/etc/evil", b"")),
        zipped({}),
        zipped({"../evil": b""}),
        zipped({"a/b": b""}),
        zipped({"..": b""}),
        zipped({"": b""}),
        zipped({"A" * 65: b""}),
        zipped({f"f{number:03}": b"" for number in range(65)}),
        zipped(files_of(PACK)).replace(b"bundle.sig", b"bundle.sih"),
        zipped(files_of(PACK)).replace(b"bundle.sig", b"anchor.sig"),
    ],
    # Some hold the time at which they are made, so their bytes name no test.
    ids=map(str, itertools.count()),
)
def test_a_zip_that_is_not_exactly_its_files_is_refused(tmp_path: Path, data: bytes) -> None:
    found = checked(tmp_path, data)
    assert found.code in (1, 2)
    assert not found.text.splitlines()[0].startswith("VALID        archive") or data == zipped({})


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_pack_that_another_program_zipped_can_be_checked_unzipped(
    tmp_path: Path, roots: list[object], method: int
) -> None:
    out, folder = io.BytesIO(), tmp_path / "unzipped"
    with zipfile.ZipFile(out, "w", compression=method) as archive:
        for name, data in reversed(files_of(PACK).items()):
            archive.writestr(name, data)
    found = checked(tmp_path, out.getvalue())
    assert (found.code, found.of("INVALID")) == (1, ["archive"])
    assert "another program" in found.text
    assert "README.txt" not in found.text
    zipfile.ZipFile(out).extractall(folder)
    assert "check the folder" in found.text
    found = answer(folder, *roots, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text
    (folder / "bundle.json").write_bytes(b"{}")
    assert answer(folder, *roots).code == 1


def test_a_name_twice_in_a_zip_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files_of(PACK).items():
            archive.writestr(zipfile.ZipInfo(name), data)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(zipfile.ZipInfo("bundle.json"), b"{}")
    assert checked(tmp_path, out.getvalue()).code == 1
    archive_of_two = Archive([of_bytes("a", b"1"), of_bytes("b", b"2")])
    data = b"".join(archive_of_two).replace(b"b", b"a")
    assert checked(tmp_path, data).code == 1


def test_seeded_mutations_never_pass_and_never_raise(tmp_path: Path) -> None:
    random_ = random.Random(20260131)
    path = tmp_path / "pack.zip"
    pieces = [b"PK\1\2", b"PK\3\4", b"PK\5\6", b"\xff" * 4, b"\0" * 8, b'{"a":', b"\x30\x80"]
    for _ in range(400):
        data = bytearray(PACK)
        for _ in range(random_.randint(1, 4)):
            at = random_.randrange(len(data))
            kind = random_.randrange(5)
            if kind == 0:
                data[at] ^= 1 << random_.randrange(8)
            elif kind == 1:
                del data[at : at + random_.randint(1, 2000)]
            elif kind == 2:
                data[at:at] = random_.choice(pieces)
            elif kind == 3:
                other = random_.randrange(len(data))
                data[at:at] = data[other : other + random_.randint(1, 500)]
            else:
                data[at : at + 4] = random_.choice(pieces)
        if bytes(data) == PACK:
            continue
        path.write_bytes(data)
        assert answer(path).code in (1, 2)


def test_seeded_mutations_of_files_within_sound_sums_never_raise(tmp_path: Path) -> None:
    """Whoever holds the pack's key may write anything; the reader must still stand."""
    by = authority("p256")
    response = by.stamp_by_openssl(EVIDENCE.checkpoint, tmp_path)
    timestamp = Timestamp(response, gen_time(response), by.chain)
    files = files_of(b"".join(pack.write(replace(EVIDENCE, timestamp=timestamp))))
    random_ = random.Random(7)
    names = [name for name in files if name not in ("verify.py", "README.txt", "SHA256SUMS.sig")]
    for _ in range(60):
        name = random_.choice(names)
        data = bytearray(files[name])
        for _ in range(random_.randint(1, 3)):
            at = random_.randrange(len(data) or 1)
            data[at : at + random_.randrange(4)] = random_.randbytes(random_.randrange(4))
        spoiled = (
            resealed(files | {name: bytes(data)})
            if "manifest" not in name
            else zipped(files | {name: bytes(data)})
        )
        found = checked(tmp_path, spoiled)
        assert found.code in (0, 1)
        if bytes(data) != files[name] and name not in ("tsa-chain.pem", "prov.json"):
            # A comment in a PEM file, and PROV but for its digest, mean nothing to it.
            assert found.code == 1 or "checkpoint.tsr" in name or name == "SHA256SUMS", name


# As a program.


def program(
    *arguments: object, python: str = sys.executable, verifier: Path = VERIFIER, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    command = [python, "-I", "-S", str(verifier), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, timeout=3000, **options)


def test_as_a_program_it_says_the_same(tmp_path: Path, roots: list[object]) -> None:
    (tmp_path / "pack.zip").write_bytes(PACK)
    done = program(tmp_path / "pack.zip", *roots, "--strict", cwd="/", env={"LC_ALL": "C"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"\nVALID\n")


def test_from_within_a_pack_it_cannot_vouch_for_itself(tmp_path: Path) -> None:
    folder = tmp_path / "unzipped"
    zipfile.ZipFile(io.BytesIO(PACK)).extractall(folder)
    done = program(verifier=folder / "verify.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    assert b"NOT CHECKED  verify.py: this program came with the pack" in done.stdout
    assert program("--strict", verifier=folder / "verify.py").returncode == 2
    # Nothing was left behind, so it can be asked again.
    assert program(verifier=folder / "verify.py").returncode == 0


def test_another_verifier_in_a_pack_is_told_of(tmp_path: Path, roots: list[object]) -> None:
    files = files_of(PACK) | {"verify.py": b"print('VALID')\n"}
    found = checked(tmp_path, resealed(files), *roots)
    assert found.of("NOT CHECKED") == ["verify.py"]
    assert hashlib.sha256(files["verify.py"]).hexdigest() in found.text


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "name"])
def test_a_folder_of_anything_but_plain_files_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "unzipped"
    zipfile.ZipFile(io.BytesIO(PACK)).extractall(folder)
    if kind == "link":
        (folder / "bundle.json").rename(tmp_path / "bundle.json")
        (folder / "bundle.json").symlink_to(tmp_path / "bundle.json")
    elif kind == "folder":
        (folder / "more").mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / "pipe")
    else:
        (folder / "a\x1b[31mb").touch()
    done = program(verifier=folder / "verify.py")
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.startswith(b"INVALID      folder: ")
    assert b"\x1b" not in done.stdout


def test_what_cannot_be_read_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "pack.zip").write_bytes(PACK)
    (tmp_path / "text").write_bytes(b"text")
    private = Ed25519PrivateKey.from_private_bytes(bytes(32)).private_bytes_raw()
    (tmp_path / "raw").write_bytes(private)
    good = tmp_path / "pack.zip"
    for arguments in (
        [tmp_path / "none.zip"],
        [tmp_path / "text"],
        ["a\0b"],
        [good, "--key", tmp_path / "none"],
        [good, "--key", tmp_path / "text"],
        [good, "--key", tmp_path / "raw"],
        [good, "--policy", tmp_path / "text"],
        [good, "--tsa-ca", tmp_path / "text"],
    ):
        found = answer(*arguments)
        assert found.code == 2, arguments
        assert found.last.startswith("COULD NOT BE READ: ")


def test_a_closed_pipe_and_an_interrupt_end_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "pack.zip").write_bytes(PACK)
    command = f"'{sys.executable}' -I -S '{VERIFIER}' '{tmp_path}/pack.zip' | :"
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True)
    assert done.stderr == b""
    for command in ("{} > /dev/full", "{} >&-"):
        run = command.format(f"'{sys.executable}' -I -S '{VERIFIER}' '{tmp_path}/pack.zip'")
        done = subprocess.run(["sh", "-c", run], check=False, capture_output=True)
        assert (done.returncode, done.stderr) == (2 if "full" in command else 0, b"")
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(VERIFIER), str(tmp_path / "pipe")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # It opens the pipe once it runs; only then does this return.
    with (tmp_path / "pipe").open("wb"):
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=300)
    assert (process.returncode, out, error) == (130, b"", b"")


@pytest.mark.parametrize("minor", range(8, 15))
def test_it_runs_on_other_pythons_that_are_here(
    tmp_path: Path, minor: int, roots: list[object]
) -> None:
    python = shutil.which(f"python3.{minor}")
    if (
        python is None
        or subprocess.run([python, "-V"], check=False, capture_output=True).returncode
    ):
        pytest.skip(f"no python3.{minor} is on the path")
    (tmp_path / "pack.zip").write_bytes(PACK)
    done = program(tmp_path / "pack.zip", *roots, "--strict", python=python)
    assert (done.returncode, done.stderr) == (0, b""), done.stdout


def test_other_programs_check_an_unzipped_pack_as_its_readme_says(tmp_path: Path) -> None:
    folder = tmp_path / "unzipped"
    zipfile.ZipFile(io.BytesIO(PACK)).extractall(folder)
    lines = (folder / "README.txt").read_text().splitlines()
    signed = "    openssl pkeyutl -verify -pubin -inkey"
    commands = [line.strip() for line in lines if line.startswith(signed)]
    commands.append("sha256sum -c SHA256SUMS")
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(command.split(), cwd=folder, check=False, capture_output=True)
        assert done.returncode == 0, (command, done.stderr)
    (folder / "bundle.json").write_bytes(files_of(PACK)["bundle.json"] + b"\n")
    for command in commands[1:]:
        assert subprocess.run(command.split(), cwd=folder, check=False).returncode != 0


def by_hand(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run what a pack's README says of checking inclusion and the log's signature by hand."""
    lines = (folder / "README.txt").read_text().splitlines()
    begin = lines.index(next(each for each in lines if each.startswith("    sum()")))
    end = lines.index("        -in ../log.txt -sigfile ../log.sig")
    script = "\n".join(each for each in lines[begin : end + 1] if each.startswith("    "))
    return subprocess.run(
        ["sh", "-e", "-c", script], cwd=folder, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("others", "index"), [(0, 0), (1, 0), (1, 1), (4, 4), (5, 3), (6, 6), (8, 8), (12, 7)]
)
def test_inclusion_is_checked_by_hand_as_the_readme_says(
    tmp_path: Path, others: int, index: int
) -> None:
    folder = tmp_path / "unzipped"
    made = b"".join(pack.write(packs.evidence(others=others, index=index)))
    zipfile.ZipFile(io.BytesIO(made)).extractall(folder)
    done = by_hand(folder)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines()[0] == "the log has the bundle"
    assert answer(folder).code == 0, "nothing was written into the folder"
    good = (folder / "checkpoint").read_text()
    (folder / "checkpoint").write_text(good.replace("\n", "\n1", 1))
    assert by_hand(folder).returncode != 0, "another size is not signed"
    (folder / "checkpoint").write_text(good)
    (folder / "bundle.json").write_bytes((folder / "bundle.json").read_bytes() + b" ")
    assert by_hand(folder).stdout.startswith("NOT in this log")


def test_it_opens_no_connection_and_imports_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", str(VERIFIER), "--help"],
        check=True,
        capture_output=True,
    )
    assert b"socket" not in done.stderr
    assert b"ssl" not in done.stderr


def test_the_files_of_a_pack_are_known_to_its_reader() -> None:
    assert sorted({*verify.SUMMED, *verify.OTHERS}) == sorted(files_of(PACK))
