"""RFC 3161 timestamps: what is asked of an authority, and when its answer counts.

An answer counts when it grants what was asked: the same SHA-256, the same nonce, signed by a
certificate for `timeStamping` that leads to a root which the operator trusts, valid at genTime.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from types import ModuleType

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from rfc3161_client import (
    HashAlgorithm,
    TimeStampRequest,
    TimestampRequestBuilder,
    TimeStampResponse,
    VerificationError,
    VerifierBuilder,
    decode_timestamp_response,
)
from rfc3161_client.tsp import PKIStatus

CONTENT_TYPE = "application/timestamp-query"

_SHA256 = x509.ObjectIdentifier("2.16.840.1.101.3.4.2.1")
_LONGEST_CHAIN = 10


class NotStamped(Exception):
    """An authority's answer is no timestamp of what was sent; the text says why."""


@dataclass(frozen=True)
class Stamp:
    """A response as it came, the certificates that lead from its signer to the root, genTime.

    `time` is genTime in RFC 3339 with the digits that the authority sent.
    """

    response: bytes
    chain: str
    time: str

    @property
    def gen_time(self) -> datetime:
        """The same as a moment, cut to microseconds."""
        return datetime.fromisoformat(self.time)


def read_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Read a PEM file of certificates. Raises ValueError unless one at least is a root."""
    found = tuple(x509.load_pem_x509_certificates(pem))
    if not any(each.subject == each.issuer for each in found):
        raise ValueError("it holds no root certificate, which others lead to")
    return found


def request(data: bytes) -> TimeStampRequest:
    """Return a request (RFC 3161 section 2.4.1) for `data`, with a nonce and `certReq`."""
    return (
        TimestampRequestBuilder()
        .data(data)
        .hash_algorithm(HashAlgorithm.SHA256)
        .nonce(nonce=True)
        .cert_request(cert_request=True)
        .build()
    )


def check(
    response: bytes, asked: TimeStampRequest, data: bytes, trusted: Sequence[x509.Certificate]
) -> Stamp:
    """Return what a response says, once it is sure to answer `asked`, which was made of `data`.

    Raises `NotStamped`.
    """
    if asked.nonce is None or _read(response).tst_info.nonce != asked.nonce:
        raise NotStamped("The nonce in the answer is not the one that was sent.")
    return verify(response, data, trusted)


def verify(response: bytes, data: bytes, trusted: Sequence[x509.Certificate]) -> Stamp:
    """Return what a response says, if it is a timestamp of exactly `data`.

    `trusted` are roots, and certificates between them and the authority's. The nonce of one that
    was kept was checked when it came. Raises `NotStamped`.
    """
    read = _read(response)
    imprint = read.tst_info.message_imprint
    try:
        if imprint.hash_algorithm != _SHA256 or imprint.message != sha256(data).digest():
            raise NotStamped("The answer is about other bytes.")
        lineage = _lineage(read, trusted)
        last = lineage[-1]
        if last not in trusted or last.subject != last.issuer:
            raise NotStamped(
                f"The authority's certificate leads to {_short(last.issuer.rfc4514_string())}, and"
                " the roots that are trusted do not include that one."
            )
        # The library takes a list of its own for each call only if it is given one.
        verifier = VerifierBuilder(
            roots=[each for each in trusted if each.subject == each.issuer],
            intermediates=[each for each in trusted if each.subject != each.issuer],
        ).build()
        verifier.verify_message(read, data)
    except (VerificationError, ValueError, TypeError) as error:
        raise NotStamped(_expired(read, trusted) or _plain(error)) from None
    chain = "".join(each.public_bytes(Encoding.PEM).decode("ascii") for each in lineage[1:])
    return Stamp(response, chain, gen_time(response))


def _read(response: bytes) -> TimeStampResponse:
    """Read a response that grants a timestamp, whatever that is worth."""
    try:
        read = decode_timestamp_response(strict(response))
    except (ValueError, TypeError) as error:
        raise NotStamped(_unreadable(response, error)) from None
    # Section 2.4.2: with anything else there is no token.
    if read.status != PKIStatus.GRANTED:
        named = {each.value: each.name.lower() for each in PKIStatus}.get(read.status, "unknown")
        raise NotStamped(f"The authority answered with the status {named}.")
    try:
        datetime.fromisoformat(gen_time(response))
    except ValueError as error:
        raise NotStamped(_plain(error)) from None
    return read


def _lineage(
    read: TimeStampResponse, trusted: Sequence[x509.Certificate]
) -> list[x509.Certificate]:
    """Return the signer's certificate and those above it, as far as they are known."""
    sent = [x509.load_der_x509_certificate(each) for each in read.signed_data.certificates]
    (signer,) = read.signed_data.signer_infos
    named = (signer.issuer, signer.serial_number)
    here = next((each for each in sent if (each.issuer, each.serial_number) == named), None)
    if here is None:
        raise NotStamped("The answer does not include its signer's certificate.")
    chain = [here]
    while here.subject != here.issuer and len(chain) <= _LONGEST_CHAIN:
        above = next((each for each in (*trusted, *sent) if _issued(each, here)), None)
        if above is None:
            break
        chain.append(above)
        here = above
    return chain


def _expired(read: TimeStampResponse, trusted: Sequence[x509.Certificate]) -> str | None:
    """Say in words which certificate was not valid; the library has an error of OpenSSL's."""
    moment = read.tst_info.gen_time
    for each in _lineage(read, trusted):
        name = f"the authority's certificate ({_short(each.subject.rfc4514_string())})"
        when = f"When the timestamp was made ({moment:%Y-%m-%dT%H:%M:%SZ}), {name}"
        begin, end = each.not_valid_before_utc, each.not_valid_after_utc
        if moment > end:
            return f"{when} had expired: it was valid until {end:%Y-%m-%dT%H:%M:%SZ}."
        if moment < begin:
            return f"{when} was not valid yet: it is from {begin:%Y-%m-%dT%H:%M:%SZ} on."
    return None


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    if issuer.subject != certificate.issuer:
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _unreadable(response: bytes, error: Exception) -> str:
    if not response:
        return "The answer is no timestamp: it is empty."
    if response.lstrip()[:1] == b"<":
        return "The answer is no timestamp: it is a page. Is this the authority's own address?"
    return (
        f"The answer, {len(response)} bytes, cannot be read as a response (RFC 3161); the parser"
        f" says: {_short(str(error))}"
    )


def _plain(error: Exception) -> str:
    return f"The answer is no timestamp that holds: {_short(str(error)) or type(error).__name__}"


def _short(text: str) -> str:
    """Cut others' words to what a row and a log line hold."""
    return " ".join(text.split())[:300]


# As `verify.der` reads them: PKIStatus, SignedData with TSTInfo, its certificates and revocation
# lists; in TSTInfo the time.
_WHOLE = "30 ( 30 ( 02 .. ) 30 ( 06 a0 ( 30 ( 02 31 30 ( 06 a0 ( 04 ) ) ?a0 ?a1 31 ( 30 ) ) ) ) )"
_CONTENT = "30 ( 02 06 30 02 * .. )"


def strict(response: bytes) -> bytes:
    """Return a response (DER) with ordered sets and `granted`; as it is if it cannot be read.

    For parsing alone: what is kept and given out is the response as it came. No length changes.
    """
    verify, made = _verifier(), response
    try:
        status, _, _, _, _, _, *sets, _ = verify.der(response, _WHOLE)
        for each in sets:
            # In the order of their bytes (X.690 section 11.6).
            ordered = b"".join(sorted(member.raw for member in verify.values(each.content)))
            made = made.replace(each.content, ordered, 1)
        # With modifications; the first integer of a response is its status.
        return made.replace(status.raw, b"\x02\x01\x00", 1) if status.content == b"\x01" else made
    except verify.Verdict:
        return response


def gen_time(response: bytes) -> str:
    """Return a response's genTime in RFC 3339, with the digits that the authority sent.

    Raises ValueError where there is none. Whether it was signed, the caller has to know.
    """
    verify = _verifier()
    try:
        info = verify.der(response, _WHOLE)[5]
        return str(verify.stated(verify.der(info.content, _CONTENT)[-1]))
    except verify.Verdict:
        raise ValueError("Its genTime is not as RFC 3161 writes it.") from None


def _verifier() -> ModuleType:
    # Its memory is for those alone who have timestamps.
    from app.evidence import verify  # noqa: PLC0415

    return verify
