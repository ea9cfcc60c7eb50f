"""Certificates (RFC 5280) by which a certificate authority says whose a signing key is.

The operator sends `request` (PKCS #10) to an authority, and sets the chain that it answers.
`verify.py` checks a chain; what it would refuse or not check is refused.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from app.lib.crypto.signing import PublicKey, SigningKey

LONGEST_CHAIN = 10
SUBJECT = {
    "country": NameOID.COUNTRY_NAME,
    "state": NameOID.STATE_OR_PROVINCE_NAME,
    "locality": NameOID.LOCALITY_NAME,
    "organization": NameOID.ORGANIZATION_NAME,
    "organizational_unit": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "organization_identifier": NameOID.ORGANIZATION_IDENTIFIER,
    "common_name": NameOID.COMMON_NAME,
}
"""The parts of a subject by their names here, in the order in which a request has them."""


@dataclass(frozen=True)
class SigningChain:
    """The certificate of one key, and those that lead from it to the authority's root."""

    certificates: tuple[x509.Certificate, ...]

    @cached_property
    def key(self) -> PublicKey:
        """The key whose owner the first certificate names."""
        key = self.certificates[0].public_key()
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise ValueError(f"{_name(self.certificates[0])} is not of an Ed25519 key")
        return PublicKey(key.public_bytes_raw())

    @property
    def pem(self) -> bytes:
        """All of it in PEM, as packs hold it."""
        return b"".join(each.public_bytes(Encoding.PEM) for each in self.certificates)

    @property
    def x5c(self) -> list[str]:
        """All of it as a JSON Web Key holds it (RFC 7517, section 4.7)."""
        ders = (each.public_bytes(Encoding.DER) for each in self.certificates)
        return [base64.b64encode(each).decode() for each in ders]

    @property
    def holder(self) -> str:
        """Whom the authority names: the organisation, else the common name."""
        return named(self.certificates[0].subject)

    @property
    def authority(self) -> str:
        """Who says so: the issuer of the first certificate."""
        return named(self.certificates[0].issuer)

    @property
    def period(self) -> tuple[datetime, datetime]:
        """From when and until when all of its certificates are valid."""
        begins = max(each.not_valid_before_utc for each in self.certificates)
        return begins, min(each.not_valid_after_utc for each in self.certificates)

    def covers(self, *moments: datetime) -> bool:
        """Say whether all of its certificates were valid at each of these moments."""
        begins, ends = self.period
        return all(begins <= each <= ends for each in moments)

    def check(self) -> None:
        """Raise ValueError, in words, for what `verify.py` would not call VALID."""
        if not self.holder or not self.authority:
            raise ValueError("its certificate names no organisation and no common name")
        for lower, upper in pairwise(self.certificates):
            if lower.issuer != upper.subject:
                raise ValueError(
                    f"{_name(lower)} was issued by {lower.issuer.rfc4514_string()}, and behind it"
                    f" stands {_name(upper)}: put each certificate before that of its issuer"
                )
        begins, ends = self.period
        if begins >= ends:
            raise ValueError("its certificates are at no time valid together")
        # Its memory is for those alone who have certificates.
        from app.evidence import verify  # noqa: PLC0415

        try:
            leaf, *issuers = verify.certificates(self.pem)
            if not (leaf.may(0) or leaf.may(1)):
                raise ValueError(f"{_name(self.certificates[0])} is not for signatures")
            verify.check_chain(leaf, issuers, [leaf, *issuers][-1:], begins, verify.DOCUMENTS)
        except verify.Verdict as verdict:
            raise ValueError(f"verify.py would say {verdict.status}: {verdict}") from None


def named(name: x509.Name) -> str:
    """Return the organisation in a name, else its common name, else nothing."""
    organisation = name.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    found = organisation or name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def read_chains(pem: bytes) -> tuple[SigningChain, ...]:
    """Read PEM with a chain for each of some keys.

    Each chain begins with the certificate of an Ed25519 key that issues nothing, and each other
    certificate has issued the one before it. Raises ValueError.
    """
    chains: list[list[x509.Certificate]] = []
    for each in x509.load_pem_x509_certificates(pem):
        if _issues(each):
            if not chains:
                raise ValueError(
                    f"the first certificate is {_name(each)}, an authority's: begin with the one"
                    " of the signing key, then who issued it, and so on up to the root"
                )
            chains[-1].append(each)
        else:
            chains.append([each])
    found = [SigningChain(tuple(certificates)) for certificates in chains]
    seen: set[str] = set()
    for chain in found:
        key_id = chain.key.id
        try:
            if len(chain.certificates) > LONGEST_CHAIN:
                raise ValueError(f"it has more than {LONGEST_CHAIN} certificates")
            if key_id in seen:
                raise ValueError("the key has two")
            chain.check()
        except ValueError as error:
            raise ValueError(f"the chain of the key {key_id}: {error}") from None
        seen.add(key_id)
    return tuple(found)


def request(key: SigningKey, subject: Mapping[str, str]) -> bytes:
    """Return a certificate request (PKCS #10) in PEM for a key, which signs it.

    `subject` has parts of SUBJECT. Raises ValueError, which names a part that cannot be so.
    """
    parts = []
    for name, oid in SUBJECT.items():
        if name in subject:
            try:
                parts.append(x509.NameAttribute(oid, subject[name]))
            except ValueError as error:
                raise ValueError(f"{name.replace('_', '-')}: {error}") from None
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=True,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(parts))
    builder = builder.add_extension(usage, critical=True)
    private = ed25519.Ed25519PrivateKey.from_private_bytes(key.seed)
    return builder.sign(private, None).public_bytes(Encoding.PEM)


def _issues(each: x509.Certificate) -> bool:
    try:
        return each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _name(each: x509.Certificate) -> str:
    return f"the certificate ({each.subject.rfc4514_string() or 'without a name'})"
