"""Evidence packs: the same bytes each time, a ZIP for every reader, and nothing contradictory."""

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.evidence import pack, verify
from app.evidence.pack.archive import Archive, Unrepeatable, measure, of_bytes
from app.evidence.pack.evidence import MAX_BUNDLE_BYTES, MAX_FILE_BYTES
from app.evidence.timestamps import Stamp
from app.ledger.notes import Note, Signer
from app.lib import canonical_json
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import files_of

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
    "findings.json",
    "session-proof.json",
    "session-statement.json",
    "session-statement.sig",
    "manifest.json",
    "pack-key.pem",
    "prov.json",
    "public-key.pem",
    "record.html",
    "record.tlog-proof",
    "verify.py",
}


def test_the_same_evidence_gives_the_same_bytes() -> None:
    evidence = replace(packs.evidence(witnesses=[9, 10]), timestamp=TIMESTAMP)
    first, second = b"".join(pack.write(evidence)), b"".join(pack.write(evidence))
    assert first == second
    archive = pack.write(evidence)
    assert b"".join(archive) == b"".join(archive) == first
    assert archive.size == len(first)


def test_a_pack_has_the_files_that_its_manifest_and_sums_name() -> None:
    files = files_of(b"".join(pack.write(packs.evidence())))
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


def test_without_others_a_pack_says_that_the_log_stands_alone() -> None:
    files = files_of(b"".join(pack.write(packs.evidence())))
    assert json.loads(files["anchor.json"])["anchored_by"] == "the service's own log alone"
    assert b"Anchored by: the service's own log alone.\n" in files["README.txt"]
    assert b"openssl ts" not in files["README.txt"]
    assert b"is in this pack, so nothing here bounds them" in files["README.txt"]
    assert b"CA.pem" not in files["README.txt"]


def test_no_name_is_cut_at_a_hyphen_in_what_is_read() -> None:
    origin = "log.example/" + "-".join(["records"] * 10)
    evidence = packs.evidence(log=Signer(origin, Ed25519PrivateKey.generate()))
    text = files_of(b"".join(pack.write(evidence)))["README.txt"].decode()
    (line,) = [each for each in text.splitlines() if each.startswith(" " * 24 + "log.example")]
    assert line.strip() == origin


def test_what_bounds_the_time_is_said_as_it_is() -> None:
    def said(evidence: pack.Evidence) -> str:
        readme = files_of(b"".join(pack.write(evidence)))["README.txt"].decode()
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
