"""Evidence packs: the same bytes each time, a ZIP for every reader, and nothing contradictory."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from app.evidence import pack, verify
from app.evidence.pack.archive import Archive, Unrepeatable, measure, of_bytes
from app.evidence.pack.evidence import MAX_BUNDLE_BYTES, MAX_FILE_BYTES
from app.ledger import merkle
from app.ledger.notes import Note, decode_base64
from app.lib import canonical_json
from app.lib.crypto.timestamps import Stamp
from tests.unit.verify import packs

TIMESTAMP = Stamp(
    b"0\x00",
    "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
    "2026-02-01T10:00:00.5Z",
)
FILES = {
    "README.txt",
    "SHA256SUMS",
    "SHA256SUMS.sig",
    "anchor.json",
    "bundle.json",
    "bundle.sig",
    "checkpoint",
    "manifest.json",
    "pack-key.pem",
    "prov.json",
    "public-key.pem",
    "record.tlog-proof",
    "verify.py",
}


def unpacked(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_same_evidence_gives_the_same_bytes() -> None:
    evidence = replace(packs.evidence(witnesses=[9, 10]), timestamp=TIMESTAMP)
    first, second = b"".join(pack.write(evidence)), b"".join(pack.write(evidence))
    assert first == second
    archive = pack.write(evidence)
    assert b"".join(archive) == b"".join(archive) == first
    assert archive.size == len(first)


def test_a_pack_has_the_files_that_its_manifest_and_sums_name() -> None:
    files = unpacked(b"".join(pack.write(packs.evidence())))
    assert set(files) == FILES
    assert list(files) == sorted(FILES)
    manifest = json.loads(files["manifest.json"])
    assert canonical_json.dumps(manifest) == files["manifest.json"]
    assert manifest["record_id"] == packs.record()["id"]
    assert manifest["pack_key_id"] == packs.KEY.public.id
    found = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name, data in files.items()
        if name != "manifest.json"
    }
    assert manifest["files"] == found
    lines = files["SHA256SUMS"].decode().splitlines()
    unsummed = {"SHA256SUMS", "SHA256SUMS.sig", "manifest.json"}
    assert lines == [f"{found[name]['sha256']}  {name}" for name in sorted(FILES - unsummed)]
    assert packs.KEY.public.verifies(files["SHA256SUMS.sig"], files["SHA256SUMS"])


def test_a_timestamp_adds_its_two_files_and_is_told_of() -> None:
    evidence = replace(packs.evidence(witnesses=[9]), timestamp=TIMESTAMP)
    files = unpacked(b"".join(pack.write(evidence)))
    assert set(files) == FILES | {"checkpoint.tsr", "tsa-chain.pem"}
    anchor = json.loads(files["anchor.json"])
    assert anchor["timestamp"]["gen_time"] == "2026-02-01T10:00:00.5Z"
    assert anchor["anchored_by"] == (
        "the service's own log, with a timestamp of 2026-02-01T10:00:00.5Z and one cosignature"
    )
    assert b"-attime 1769940000\n" in files["README.txt"]


def test_without_others_a_pack_says_that_the_log_stands_alone() -> None:
    files = unpacked(b"".join(pack.write(packs.evidence())))
    assert json.loads(files["anchor.json"])["anchored_by"] == "the service's own log alone"
    assert b"Anchored by: the service's own log alone.\n" in files["README.txt"]
    assert b"openssl ts" not in files["README.txt"]
    assert b"is in this pack, so nothing here bounds them" in files["README.txt"]
    assert b"CA.pem" not in files["README.txt"]


def test_what_bounds_the_time_is_said_as_it_is() -> None:
    def said(evidence: pack.Evidence) -> str:
        readme = unpacked(b"".join(pack.write(evidence)))["README.txt"].decode()
        item = readme.partition("- When it happened.")[2].partition("\n- ")[0]
        return " ".join(item.split())

    witnessed = packs.evidence(witnesses=[9])
    assert said(packs.evidence()).endswith("so nothing here bounds them.")
    assert "nothing here" not in said(witnessed)
    assert said(witnessed).endswith(
        "No timestamp by an authority is in this pack. Each cosignature has a time: when its "
        "witness says that it saw this checkpoint."
    )
    stamped = said(replace(witnessed, timestamp=TIMESTAMP))
    assert stamped.endswith("shows only that the log had this leaf by 2026-02-01T10:00:00.5Z.")


def test_the_checkpoint_has_the_logs_signature_only_and_the_proof_has_all() -> None:
    evidence = packs.evidence(witnesses=[9, 10])
    files = unpacked(b"".join(pack.write(evidence)))
    assert files["checkpoint"] == evidence.checkpoint
    head, _, note = files["record.tlog-proof"].partition(b"\n\n")
    assert [each.name for each in Note.parse(note).signatures] == [
        packs.ORIGIN,
        "witness.example/w9",
        "witness.example/w10",
    ]
    header, index, *path = head.decode().split("\n")
    assert (header, index) == ("c2sp.org/tlog-proof@v1", f"index {evidence.leaf_index}")
    checkpoint = evidence.check()
    leaf, siblings = merkle.leaf_hash(evidence.leaf_data), list(map(decode_base64, path))
    place = (evidence.leaf_index, checkpoint.size)
    merkle.verify_inclusion(leaf, *place, siblings, checkpoint.root)


def test_a_tree_of_one_leaf_has_a_proof_without_hashes() -> None:
    proof = packs.evidence(others=0, index=0).tlog_proof
    assert proof.startswith(b"c2sp.org/tlog-proof@v1\nindex 0\n\nlog.example/records\n1\n")


def test_other_readers_of_zip_find_it_sound(tmp_path: Path) -> None:
    path = tmp_path / "pack.zip"
    path.write_bytes(b"".join(pack.write(packs.evidence())))
    done = subprocess.run(
        [sys.executable, "-m", "zipfile", "-t", str(path)], check=True, capture_output=True
    )
    assert b"Done testing" in done.stdout
    with zipfile.ZipFile(path) as archive:
        for each in archive.infolist():
            assert each.compress_type == zipfile.ZIP_STORED
            assert each.date_time == (1980, 2, 1, 0, 0, 0)
            assert (each.create_system, each.external_attr >> 16) == (3, 0o100644)


OTHER = packs.evidence(packs.bundle_of(8), others=6, witnesses=[9])


@pytest.mark.parametrize(
    "changes",
    [
        {"bundle": OTHER.bundle},
        {"signature": OTHER.signature},
        {"public_key": packs.NEXT_KEY.public},
        {"checkpoint": OTHER.checkpoint},
        {"path": OTHER.path},
        {"leaf_index": 2},
        {"leaf_index": -1},
        {"log_key": packs.witness_key(9)},
        {"release": ""},
        {"release": "1.0 beta"},
        {"cosignatures": Note.parse(OTHER.checkpoint).signatures},
        {"checkpoint": bytes(Note.parse(OTHER.checkpoint).with_signatures(OTHER.cosignatures))},
        {"timestamp": replace(TIMESTAMP, time="2026-02-01T10:00:00")},
        {"timestamp": replace(TIMESTAMP, time="2026-02-01T10:00:00+01:00")},
        {"timestamp": replace(TIMESTAMP, response=b"")},
        {"timestamp": replace(TIMESTAMP, chain="")},
        {"timestamp": replace(TIMESTAMP, chain=TIMESTAMP.chain + "\0" * 2**20)},
        {"bundle": bytes(2**24 + 1)},
    ],
    ids=",".join,
)
def test_what_does_not_belong_together_is_never_packed(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        pack.write(replace(packs.evidence(), **changes))  # type: ignore[arg-type]


def test_what_the_writer_allows_the_verifier_reads() -> None:
    assert (MAX_BUNDLE_BYTES, MAX_FILE_BYTES) == (verify.MAX_BUNDLE, verify.MAX_SMALL)
    assert len(pack.verifier_source()) < MAX_FILE_BYTES


def test_a_file_that_changes_between_its_two_readings_ends_the_archive() -> None:
    versions = iter([b"first", b"other"])
    member = measure("a", lambda: [next(versions)])
    with pytest.raises(Unrepeatable):
        list(Archive([member]))


def test_an_archive_refuses_a_name_twice_and_more_than_a_zip_can_say() -> None:
    with pytest.raises(ValueError, match="same name"):
        Archive([of_bytes("a", b""), of_bytes("a", b"")])
    with pytest.raises(ValueError, match="4294967294"):
        Archive([replace(of_bytes("a", b""), size=2**32)])


def test_an_empty_archive_is_a_zip() -> None:
    assert unpacked(b"".join(Archive([]))) == {}
