"""Timestamps (RFC 3161) in a pack: verified as OpenSSL does, refused when changed."""

import io
import re
import subprocess
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from app.evidence import verify
from tests.support.servers.certificates import ROOT, issue, private_key
from tests.unit.verify import authorities
from tests.unit.verify.authorities import TIMESTAMPING, Authority, authority
from tests.unit.verify.stamped_packs import EVIDENCE, MOMENT, checked, stamped, verdict


def algorithm(dotted: str) -> bytes:
    return authorities.der(0x30, authorities.oid(dotted))


def openssl(folder: Path, data: bytes, *extra: str) -> subprocess.CompletedProcess[bytes]:
    zipfile.ZipFile(io.BytesIO(data)).extractall(folder)
    command = "openssl ts -verify -data checkpoint -in checkpoint.tsr -CAfile tsa-chain.pem"
    return subprocess.run([*command.split(), *extra], cwd=folder, check=False, capture_output=True)


def command_of(folder: Path, beginning: str) -> str:
    lines = (folder / "README.txt").read_text().splitlines()
    return next(line.strip() for line in lines if line.strip().startswith(beginning))


@pytest.mark.parametrize("naming", ["sha1", "sha256", "sha512"])
def test_openssls_timestamp_is_valid_here_as_there(
    tmp_path: Path, by: Authority, naming: str
) -> None:
    response = by.stamp_by_openssl(EVIDENCE.checkpoint, tmp_path, naming)
    data = stamped(response, by.chain, authorities.gen_time(response))
    out = tmp_path / "out"
    assert openssl(out, data).returncode == 0
    done = subprocess.run(
        command_of(out, "openssl ts").split(), cwd=out, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    found = checked(tmp_path, data)
    assert found.code == 0, found.text
    assert found.verdicts["checkpoint.tsr"] == "VALID"
    assert found.verdicts["tsa-chain.pem"] == "NOT CHECKED"


def test_a_timestamp_outlives_its_certificate(tmp_path: Path, by: Authority) -> None:
    old = MOMENT - timedelta(days=1000)
    signer = authority("p256", begin=old - timedelta(days=1), end=old + timedelta(days=1))
    data = stamped(
        signer.stamp(EVIDENCE.checkpoint, old), signer.chain, f"{old:%Y-%m-%dT%H:%M:%SZ}"
    )
    out = tmp_path / "out"
    # Without a moment OpenSSL holds the certificate to today: README.txt says how to go on.
    assert openssl(out, data).returncode != 0
    done = subprocess.run(
        command_of(out, "openssl ts").split(), cwd=out, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "ca.pem").write_bytes(signer.chain)
    found = checked(tmp_path, data, "--tsa-ca", tmp_path / "ca.pem")
    assert (found.verdicts["checkpoint.tsr"], found.code) == ("VALID", 0)
    assert found.verdicts["tsa-chain.pem"] == "VALID"
    # Another's root is not this one's, whatever the pack itself brings.
    (tmp_path / "ca.pem").write_bytes(by.chain)
    found = checked(tmp_path, data, "--tsa-ca", tmp_path / "ca.pem")
    assert (found.verdicts["checkpoint.tsr"], found.code) == ("INVALID", 1)


def test_our_own_responses_are_good_before_they_are_spoiled(tmp_path: Path, by: Authority) -> None:
    assert verdict(tmp_path, by) == "VALID"
    response = by.stamp(EVIDENCE.checkpoint, MOMENT)
    done = openssl(tmp_path / "out", stamped(response, by.chain), "-attime", "1769947200")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"status": 1}, "VALID"),
        ({"status": 2}, "INVALID"),
        ({"imprint": bytes(32)}, "INVALID"),
        ({"imprint": bytes(31)}, "INVALID"),
        ({"imprint_algorithm": authorities.SHA384}, "INVALID"),
        ({"content_type": "1.2.840.113549.1.7.1"}, "INVALID"),
        ({"digest": bytes(32)}, "INVALID"),
        ({"named": bytes(32)}, "INVALID"),
        ({"without": ["type"]}, "INVALID"),
        ({"without": ["digest"]}, "INVALID"),
        ({"without": ["named"]}, "INVALID"),
        ({"twice": True}, "INVALID"),
        ({"version": 2}, "INVALID"),
        ({"signer_version": 3}, "INVALID"),
        ({"held": False}, "INVALID"),
        ({"key_identifier": bytes(20), "signer_version": 3}, "INVALID"),
        ({"content_kind": "1.2.840.113549.1.7.1"}, "INVALID"),
        ({"digest_algorithm": algorithm("1.3.14.3.2.26")}, "NOT CHECKED"),
        ({"signature_algorithm": algorithm("1.2.840.113549.1.1.10")}, "NOT CHECKED"),
        ({"signature_algorithm": algorithm("1.2.840.10045.4.3.3")}, "NOT CHECKED"),
    ],
    ids=str,
)
def test_a_timestamp_with_something_else_in_it(
    tmp_path: Path, p256: Authority, other: dict[str, Any], expected: str
) -> None:
    assert verdict(tmp_path, p256, **other) == expected


def test_the_signer_may_be_named_by_its_key_and_stand_in_the_chain_alone(tmp_path: Path) -> None:
    key = private_key("p256")
    named = x509.SubjectKeyIdentifier(b"k" * 20)
    root = issue("root", key, None, ROOT)
    signer_key = private_key("p256")
    signer = issue("signer", signer_key, (root, key), [TIMESTAMPING, (named, False)])
    by = Authority(signer_key, signer, (signer, root))
    other = {"key_identifier": b"k" * 20, "signer_version": 3, "held": False}
    data = stamped(by.stamp(EVIDENCE.checkpoint, MOMENT, **other), by.chain)
    assert checked(tmp_path, data).verdicts["checkpoint.tsr"] == "VALID"
    (tmp_path / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
    found = checked(tmp_path, data, "--tsa-ca", tmp_path / "ca.pem")
    assert found.verdicts["checkpoint.tsr"] == "VALID"


@pytest.mark.parametrize("kind", ["p521", "rsa1024"])
def test_keys_that_it_does_not_check_are_told_of(tmp_path: Path, kind: str) -> None:
    assert verdict(tmp_path, authority(kind)) == "NOT CHECKED"


def test_a_response_with_any_bit_flipped_is_not_valid(tmp_path: Path, p256: Authority) -> None:
    response = p256.stamp(EVIDENCE.checkpoint, MOMENT)
    roots = verify.certificates(p256.chain)
    valid = []
    for at in range(0, len(response), 3):
        spoiled = bytearray(response)
        spoiled[at] ^= 1 << at % 8
        try:
            verify.check_timestamp(bytes(spoiled), EVIDENCE.checkpoint, p256.chain, roots)
        except verify.Verdict:
            continue
        valid.append(at)
    # Nobody signs what names the digests in front of the content and of the signature (RFC 5652,
    # 5.1 and 5.3); the signature shows which it was.
    unsigned: set[int] = set()
    for found in re.finditer(re.escape(authorities.SHA256), response):
        unsigned.update(range(found.start() - 2, found.end()))
    assert unsigned.issuperset(valid), (sorted(unsigned), valid)
