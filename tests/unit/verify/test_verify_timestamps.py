"""Timestamps in packs: OpenSSL's and our own, held to `openssl ts` and to `verify.py`."""

import io
import re
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from app.evidence import pack, verify
from app.evidence.pack import Timestamp
from tests.support.evidence.verifying import Answer, answer
from tests.support.servers.certificates import ROOT, issue, private_key
from tests.unit.verify import authorities, packs
from tests.unit.verify.authorities import TIMESTAMPING, Authority, authority

MOMENT = datetime(2026, 2, 1, 12, 0, 0, tzinfo=UTC)
EVIDENCE = packs.evidence()


@pytest.fixture(scope="session", params=authorities.KINDS)
def by(request: pytest.FixtureRequest) -> Authority:
    return authority(request.param)


@pytest.fixture(scope="session")
def p256() -> Authority:
    return authority()


def stamped(response: bytes, chain: bytes, moment: datetime = MOMENT) -> bytes:
    timestamp = Timestamp(response, moment, chain)
    return b"".join(pack.write(replace(EVIDENCE, timestamp=timestamp)))


def checked(folder: Path, data: bytes, *arguments: object) -> Answer:
    (folder / "pack.zip").write_bytes(data)
    return answer(folder / "pack.zip", *arguments)


def verdict(folder: Path, by: Authority, *, moment: datetime = MOMENT, **other: Any) -> str:
    """The verdict on a timestamp with something unusual about it, by a root given from outside."""
    response = by.stamp(EVIDENCE.checkpoint, moment, **other)
    (folder / "ca.pem").write_bytes(by.chain)
    data = stamped(response, by.chain, moment)
    return checked(folder, data, "--tsa-ca", folder / "ca.pem").verdicts["checkpoint.tsr"]


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
    data = stamped(signer.stamp(EVIDENCE.checkpoint, old), signer.chain, old)
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
        (
            {"digest_algorithm": authorities.der(0x30, authorities.oid("1.3.14.3.2.26"))},
            "NOT CHECKED",
        ),
        ({"fraction": ".50"}, "INVALID"),
        ({"fraction": "."}, "INVALID"),
        (
            {
                "signature_algorithm": authorities.der(
                    0x30, authorities.oid("1.2.840.113549.1.1.10")
                )
            },
            "NOT CHECKED",
        ),
        (
            {"signature_algorithm": authorities.der(0x30, authorities.oid("1.2.840.10045.4.3.3"))},
            "NOT CHECKED",
        ),
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


def test_a_moment_may_have_a_fraction(tmp_path: Path, p256: Authority) -> None:
    moment = MOMENT.replace(microsecond=123_456)
    assert verdict(tmp_path, p256, moment=moment, fraction=".1234567") == "VALID"
    assert verdict(tmp_path, p256, moment=moment, fraction=".123457") == "INVALID"


AFTER = datetime(2061, 1, 1, tzinfo=UTC)
SERVER = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
BOTH = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING, ExtendedKeyUsageOID.SERVER_AUTH])
UNKNOWN = x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4"), b"\x05\x00")


def usage(**bits: bool) -> x509.KeyUsage:
    names = [
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ]
    return x509.KeyUsage(**{each: bits.get(each, False) for each in names})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"signer": []}, "INVALID"),
        ({"signer": [(TIMESTAMPING[0], False)]}, "INVALID"),
        ({"signer": [(SERVER, True)]}, "INVALID"),
        ({"signer": [(BOTH, True)]}, "INVALID"),
        ({"signer": [TIMESTAMPING, (usage(digital_signature=True), True)]}, "VALID"),
        ({"signer": [TIMESTAMPING, (usage(content_commitment=True), True)]}, "VALID"),
        ({"signer": [TIMESTAMPING, (usage(key_encipherment=True), True)]}, "INVALID"),
        ({"signer": [TIMESTAMPING, (UNKNOWN, False)]}, "VALID"),
        ({"signer": [TIMESTAMPING, (UNKNOWN, True)]}, "NOT CHECKED"),
        ({"root": []}, "INVALID"),
        ({"root": [(x509.BasicConstraints(ca=False, path_length=None), True)]}, "INVALID"),
        ({"root": [(x509.BasicConstraints(ca=True, path_length=0), True)]}, "VALID"),
        ({"root": [*ROOT, (usage(key_cert_sign=True), True)]}, "VALID"),
        ({"root": [*ROOT, (usage(crl_sign=True), True)]}, "INVALID"),
        ({"root": [*ROOT, (SERVER, False)]}, "INVALID"),
        ({"end": MOMENT - authorities.SECOND}, "INVALID"),
        ({"begin": MOMENT + authorities.SECOND}, "INVALID"),
        ({"begin": MOMENT, "end": MOMENT}, "VALID"),
    ],
    ids=str,
)
def test_the_certificates_must_be_for_this(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    assert verdict(tmp_path, authority(**changes)) == expected


def with_middle(
    extensions: Any = ROOT, *, middle_signs: bool = True
) -> tuple[Authority, x509.Certificate]:
    keys = [private_key("p256") for _ in range(3)]
    root = issue("root", keys[0], None, [(x509.BasicConstraints(ca=True, path_length=1), True)])
    middle = issue("middle", keys[1], (root, keys[0]), extensions)
    above = (middle, keys[1 if middle_signs else 0])
    signer = issue("signer", keys[2], above, [TIMESTAMPING])
    return Authority(keys[2], signer, (middle, root)), root


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (with_middle, "VALID"),
        (lambda: with_middle([]), "INVALID"),
        (lambda: with_middle([*ROOT, (SERVER, True)]), "INVALID"),
        (lambda: with_middle(middle_signs=False), "INVALID"),
    ],
)
def test_a_chain_leads_through_those_in_between_to_the_root_given(
    tmp_path: Path, make: Callable[[], tuple[Authority, x509.Certificate]], expected: str
) -> None:
    by, root = make()
    (tmp_path / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
    data = stamped(by.stamp(EVIDENCE.checkpoint, MOMENT), by.chain)
    found = checked(tmp_path, data, "--tsa-ca", tmp_path / "ca.pem")
    assert found.verdicts["checkpoint.tsr"] == expected
    assert checked(tmp_path, data).verdicts["checkpoint.tsr"] == expected


def test_a_chain_is_found_among_certificates_of_one_name(tmp_path: Path) -> None:
    """As after a cross-certification: one name and key, and only one way up is trusted."""
    keys = [private_key("p256") for _ in range(4)]
    roots = [issue(f"root {number}", keys[number], None, ROOT) for number in (0, 1)]
    middles = [issue("middle", keys[2], (roots[number], keys[number]), ROOT) for number in (0, 1)]
    signer = issue("signer", keys[3], (middles[0], keys[2]), [TIMESTAMPING])
    for order in ((0, 1), (1, 0)):
        above = tuple(middles[number] for number in order)
        by = Authority(keys[3], signer, (*above, *roots))
        data = stamped(by.stamp(EVIDENCE.checkpoint, MOMENT), by.chain)
        for root in roots:
            (tmp_path / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
            found = checked(tmp_path, data, "--tsa-ca", tmp_path / "ca.pem")
            assert found.verdicts["checkpoint.tsr"] == "VALID", found.text


def test_a_root_of_the_same_name_with_another_kind_of_key_is_passed_over(tmp_path: Path) -> None:
    for by, other in (("p256", "rsa"), ("rsa", "p384")):
        signer, stranger = authority(by), authority(other)
        (tmp_path / "ca.pem").write_bytes(stranger.chain + signer.chain)
        data = stamped(signer.stamp(EVIDENCE.checkpoint, MOMENT), signer.chain)
        found = checked(tmp_path, data, "--tsa-ca", tmp_path / "ca.pem")
        assert found.verdicts["checkpoint.tsr"] == "VALID", found.text


def test_a_root_that_is_not_asked_for_a_timestamp_is_told_of(
    tmp_path: Path, p256: Authority
) -> None:
    (tmp_path / "ca.pem").write_bytes(p256.chain)
    found = checked(
        tmp_path, b"".join(pack.write(EVIDENCE)), "--tsa-ca", tmp_path / "ca.pem", "--strict"
    )
    assert found.verdicts["checkpoint.tsr"] == "NOT CHECKED"
    assert found.code == 2


def test_the_anchor_must_tell_of_this_timestamp(tmp_path: Path, p256: Authority) -> None:
    response = p256.stamp(EVIDENCE.checkpoint, MOMENT)
    data = stamped(response, p256.chain, MOMENT + authorities.SECOND)
    assert checked(tmp_path, data).verdicts["checkpoint.tsr"] == "INVALID"


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
