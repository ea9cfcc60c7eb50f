"""JSON that another parser would read differently is refused."""

import hashlib
from base64 import b64encode
from pathlib import Path

import pytest

from app.evidence import pack
from app.ledger import leaves
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import (
    EVIDENCE,
    PACK,
    anchor_with,
    checked,
    files_of,
    in_proof,
    resealed,
    zipped,
)

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
        in_proof(leaf_data=b64encode(leaves.record(bytes(32))).decode()),
        in_proof(inclusion=[]),
        in_proof(inclusion=["00" * 32] * 3),
        in_proof(inclusion=["00" * 31] * 3),
        in_proof(inclusion=["0" * 63] * 3),
        in_proof(inclusion=["00" * 32] * 100),
        in_proof(inclusion={}),
        in_proof(checkpoint=""),
        in_proof(checkpoint="\n\n\n"),
        in_proof(checkpoint=str(EVIDENCE.cosigned)),
        in_proof(checkpoint=EVIDENCE.checkpoint.decode().replace("\n6\n", "\n06\n")),
        in_proof(checkpoint=EVIDENCE.checkpoint.decode().replace("\n6\n", "\n7\n")),
        in_proof(more=1),
        anchor_with(lambda value: value.update(vkey=str(packs.witness_key(9)))),
        anchor_with(lambda value: value.update(vkey="x+00000000+AAAA")),
        anchor_with(lambda value: value.update(vkey=None)),
        anchor_with(lambda value: value.update(schema="records/anchor/v1")),
        anchor_with(lambda value: value.update(schema="records/anchor/v3")),
        anchor_with(lambda value: value.pop("agent")),
        anchor_with(lambda value: value["agent"].update(id="agt_" + "0" * 32)),
        anchor_with(lambda value: value["agent"].update(name=None)),
        anchor_with(lambda value: value["agent"].update(name="another name")),
        anchor_with(lambda value: value["agent"].update(more=1)),
        anchor_with(lambda value: value.update(agent="agt_1")),
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


def test_a_pack_of_a_bundle_of_version_1_is_valid_with_its_agent_s_name_on_the_packer_s_word(
    tmp_path: Path,
) -> None:
    data = b"".join(pack.write(packs.evidence(packs.bundle_v1())))
    found = checked(tmp_path, data)
    assert found.code == 0, found.text
    anchor = files_of(data)["anchor.json"]
    other = anchor.replace(f"agt_{3:032x}".encode(), f"agt_{4:032x}".encode())
    found = checked(tmp_path, resealed(files_of(data) | {"anchor.json": other}))
    assert found.verdicts["anchor.json"] == "INVALID"


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b'"name":"Pr', b'"name":"Qr'),
        (b'"external_id":"urn:agents', b'"external_id":"urn:bgents'),
        (b'"external_id":"run 7"', b'"external_id":"run 8"'),
        (b'"version":"2', b'"version":"3'),
        (b'"models":["m-4"]', b'"models":["m-5"]'),
        (b'"trace_id":"4', b'"trace_id":"5'),
        (b'"decision":"approved"', b'"decision":"rejected"'),
        (b'"approved_by":"ana', b'"approved_by":"eva'),
    ],
)
def test_who_acted_with_what_and_who_approved_is_in_what_is_signed(
    tmp_path: Path, was: bytes, becomes: bytes
) -> None:
    raw = files_of(PACK)["bundle.json"]
    assert raw.count(was) == 1
    changed = {"bundle.json": raw.replace(was, becomes)}
    found = checked(tmp_path, resealed(files_of(PACK) | changed))
    assert found.code == 1
    assert found.verdicts["bundle.sig"] == "INVALID"
