"""X.509 certificates: issued as a test says, and an authority for TLS servers."""

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
Extension = tuple[x509.ExtensionType, bool]

BEGIN, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)

ROOT: list[Extension] = [(x509.BasicConstraints(ca=True, path_length=None), True)]
_SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def private_key(kind: str = "p256") -> PrivateKey:
    """Make a key: `rsa`, `rsa` with its bits, `p256`, `p384` or `p521`."""
    if kind.startswith("rsa"):
        return rsa.generate_private_key(65537, int(kind[3:] or 2048))
    curves = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1(), "p521": ec.SECP521R1()}
    return ec.generate_private_key(curves[kind])


def digest_of(key: PrivateKey) -> hashes.SHA256 | hashes.SHA384:
    """Return what a key of this size signs a digest of."""
    return hashes.SHA384() if key.key_size == 384 else hashes.SHA256()


def issue(
    subject: str,
    key: PrivateKey,
    issuer: tuple[x509.Certificate, PrivateKey] | None,
    extensions: Sequence[Extension],
    *,
    begin: datetime = BEGIN,
    end: datetime = END,
) -> x509.Certificate:
    """Issue a certificate with a common name; a root signs itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    signer = key if issuer is None else issuer[1]
    builder = x509.CertificateBuilder(
        issuer_name=name if issuer is None else issuer[0].subject,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=begin,
        not_valid_after=end,
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, digest_of(signer))


class ServerAuthority:
    """An authority for TLS servers: `ca_file` holds its root, `pem`.

    `asked_for` lists the server names (SNI) that clients of its servers asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = private_key()
        self.asked_for: list[str | None] = []
        of_root = [
            *_identifiers(self._key, self._key),
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_SIGNS_CERTIFICATES, True),
        ]
        self._root = issue("Test root", self._key, None, of_root)
        self.ca_file = str(folder / "root.pem")
        self.pem = self._root.public_bytes(Encoding.PEM).decode()
        Path(self.ca_file).write_text(self.pem)

    def server(self, *names: str, expired: bool = False, trusted: bool = True) -> ssl.SSLContext:
        """Return a server's context with a certificate for `names`, some of them addresses.

        `trusted=False` lets the certificate sign itself.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_file(*names, expired=expired, trusted=trusted))
        context.sni_callback = self._note_name
        return context

    def server_file(self, *names: str, expired: bool = False, trusted: bool = True) -> Path:
        """Write such a certificate and its key into a file of their own."""
        key = private_key()
        now = datetime.now(UTC)
        extensions: list[Extension] = [
            *_identifiers(key, self._key if trusted else key),
            (x509.SubjectAlternativeName([_alternative(name) for name in names]), False),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        ]
        certificate = issue(
            names[0],
            key,
            (self._root, self._key) if trusted else None,
            extensions,
            begin=now - timedelta(days=30),
            end=now + timedelta(days=-1 if expired else 30),
        )
        file = self._folder / f"{certificate.serial_number:x}.pem"
        file.write_bytes(
            certificate.public_bytes(Encoding.PEM)
            + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        return file

    def _note_name(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        self.asked_for.append(name)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _identifiers(key: PrivateKey, signer: PrivateKey) -> list[Extension]:
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return [
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (authority, False),
    ]
