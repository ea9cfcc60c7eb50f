"""Timestamping authorities: a root, a signer and RFC 3161 responses, by OpenSSL or byte by byte."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support.servers.certificates import (
    BEGIN,
    END,
    ROOT,
    PrivateKey,
    digest_of,
    issue,
    private_key,
)

KINDS = ("rsa", "p256", "p384")

_CONFIG = """
[tsa]
default_tsa = authority
[authority]
serial = {folder}/serial
crypto_device = builtin
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
ess_cert_id_alg = {naming}
"""


TIMESTAMPING = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), True)


@dataclass(frozen=True)
class Authority:
    """An authority: its signer's key and certificate, and those above it, the root last."""

    key: PrivateKey
    certificate: x509.Certificate
    above: tuple[x509.Certificate, ...]

    @property
    def chain(self) -> bytes:
        return b"".join(each.public_bytes(Encoding.PEM) for each in self.above)

    def stamp_by_openssl(self, data: bytes, folder: Path, naming: str = "sha256") -> bytes:
        """Have OpenSSL make a timestamp of now."""
        (folder / "data").write_bytes(data)
        (folder / "serial").write_text("01\n")
        (folder / "ts.cnf").write_text(_CONFIG.format(folder=folder, naming=naming))
        (folder / "tsa.pem").write_bytes(self.certificate.public_bytes(Encoding.PEM))
        form = PrivateFormat.PKCS8
        (folder / "tsa.key").write_bytes(self.key.private_bytes(Encoding.PEM, form, NoEncryption()))
        query = "openssl ts -query -data data -sha256 -cert -out query.tsq"
        reply = "openssl ts -reply -config ts.cnf -queryfile query.tsq -signer tsa.pem"
        for command in (query, f"{reply} -inkey tsa.key -out reply.tsr"):
            subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
        return (folder / "reply.tsr").read_bytes()

    def stamp(self, data: bytes, moment: datetime, **other: Any) -> bytes:
        """Make a timestamp of any moment, with any part of it another than it should be."""
        return response(self, data, moment, **other)


def authority(
    kind: str = "p256",
    *,
    signer: Sequence[tuple[x509.ExtensionType, bool]] = (TIMESTAMPING,),
    root: Sequence[tuple[x509.ExtensionType, bool]] = ROOT,
    begin: datetime = BEGIN,
    end: datetime = END,
) -> Authority:
    root_key, key = private_key(kind), private_key(kind)
    above = issue("root", root_key, None, root)
    certificate = issue("signer", key, (above, root_key), signer, begin=begin, end=end)
    return Authority(key, certificate, (above,))


def gen_time(response_bytes: bytes) -> str:
    """Read the moment of a timestamp of ours or of OpenSSL's, which has whole seconds."""
    at = response_bytes.index(b"\x18\x0f") + 2
    text = response_bytes[at : at + 14].decode()
    return f"{datetime.strptime(text, '%Y%m%d%H%M%S'):%Y-%m-%dT%H:%M:%SZ}"  # noqa: DTZ007  # UTC


# DER, as little of it as a response needs.


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def integer(value: int) -> bytes:
    return der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray()
    for arc in [40 * first + second, *rest]:
        groups = [arc & 0x7F]
        while arc := arc >> 7:
            groups.append(arc & 0x7F | 0x80)
        content += bytes(reversed(groups))
    return der(0x06, bytes(content))


NULL = b"\x05\x00"
SHA256 = der(0x30, oid("2.16.840.1.101.3.4.2.1"), NULL)
SHA384 = der(0x30, oid("2.16.840.1.101.3.4.2.2"), NULL)
TST_INFO = "1.2.840.113549.1.9.16.1.4"


def attribute(dotted: str, value: bytes) -> bytes:
    return der(0x30, oid(dotted), der(0x31, value))


def signed_attributes(
    by: Authority,
    info: bytes,
    *,
    content_type: str = TST_INFO,
    digest: bytes | None = None,
    named: bytes | None = None,
    without: Sequence[str] = (),
    twice: bool = False,
) -> list[bytes]:
    hashed = hashes.Hash(digest_of(by.key))
    hashed.update(info)
    raw = by.certificate.public_bytes(Encoding.DER)
    attributes = {
        "type": attribute("1.2.840.113549.1.9.3", oid(content_type)),
        "digest": attribute("1.2.840.113549.1.9.4", der(0x04, digest or hashed.finalize())),
        "named": attribute(
            "1.2.840.113549.1.9.16.2.47",
            der(0x30, der(0x30, der(0x30, der(0x04, named or sha256(raw).digest())))),
        ),
    }
    kept = [value for key, value in attributes.items() if key not in without]
    return sorted(kept + kept[:1] if twice else kept)


def sign(key: PrivateKey, signed: bytes) -> tuple[bytes, bytes]:
    """Return the identifier of the signature's algorithm, and the signature."""
    algorithm = digest_of(key)
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(signed, padding.PKCS1v15(), algorithm)
        return der(0x30, oid("1.2.840.113549.1.1.1"), NULL), signature
    last = "3" if algorithm.digest_size == 48 else "2"
    return der(0x30, oid(f"1.2.840.10045.4.3.{last}")), key.sign(signed, ec.ECDSA(algorithm))


def signer_info(
    by: Authority,
    info: bytes,
    usual: bytes,
    *,
    signature_algorithm: bytes | None = None,
    signer_version: int = 1,
    key_identifier: bytes | None = None,
    digest_algorithm: bytes | None = None,
    **of_attributes: Any,
) -> bytes:
    kept = signed_attributes(by, info, **of_attributes)
    standard, signature = sign(by.key, der(0x31, *kept))
    number = integer(by.certificate.serial_number)
    serial = der(0x30, by.certificate.issuer.public_bytes(), number)
    return der(
        0x30,
        integer(signer_version),
        serial if key_identifier is None else der(0x80, key_identifier),
        digest_algorithm or usual,
        der(0xA0, *kept),
        signature_algorithm or standard,
        der(0x04, signature),
    )


def response(
    by: Authority,
    data: bytes,
    moment: datetime,
    *,
    status: int = 0,
    imprint: bytes | None = None,
    imprint_algorithm: bytes = SHA256,
    fraction: str = "",
    version: int = 1,
    held: bool = True,
    content_kind: str = "1.2.840.113549.1.7.2",
    **of_signer: Any,
) -> bytes:
    moment_text = moment.astimezone(UTC).strftime("%Y%m%d%H%M%S") + fraction + "Z"
    info = der(
        0x30,
        integer(version),
        oid("1.2.3.4"),
        der(0x30, imprint_algorithm, der(0x04, imprint or sha256(data).digest())),
        integer(7),
        der(0x18, moment_text.encode()),
    )
    usual = SHA384 if digest_of(by.key).digest_size == 48 else SHA256
    content = der(
        0x30,
        integer(3),
        der(0x31, usual),
        der(0x30, oid(TST_INFO), der(0xA0, der(0x04, info))),
        der(0xA0, by.certificate.public_bytes(Encoding.DER)) if held else b"",
        der(0x31, signer_info(by, info, usual, **of_signer)),
    )
    token = der(0x30, oid(content_kind), der(0xA0, content))
    return der(0x30, der(0x30, integer(status)), token)


SECOND = timedelta(seconds=1)
