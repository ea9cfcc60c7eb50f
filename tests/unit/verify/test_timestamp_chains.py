"""Certificate chains of timestamp authorities, to the roots that were given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from app.evidence import pack
from tests.support.servers.certificates import ROOT, issue, private_key
from tests.unit.verify import authorities
from tests.unit.verify.authorities import TIMESTAMPING, Authority, authority
from tests.unit.verify.stamped_packs import EVIDENCE, MOMENT, checked, stamped, verdict

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
