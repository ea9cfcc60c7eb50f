"""The signatures on a webhook delivery: Standard Webhooks, and our own header with the same HMAC.

What is signed is `{webhook-id}.{webhook-timestamp}.{raw body}` with HMAC-SHA256, keyed by the
decoded bytes of the secret. During a rotation every secret still in force signs, newest first, so a
receiver that knows any one of them can verify. See https://www.standardwebhooks.com.
"""

import base64
import binascii
import hmac
import json
import secrets as randomness
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from app.lib import indented_json

PREFIX = "whsec_"


def new_secret() -> str:
    """Make a webhook's secret: `whsec_` and the base64 of 32 random bytes."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode("ascii")


class Signer:
    """Signs for one webhook; made once, it holds the decoded secrets and signs many deliveries."""

    __slots__ = ("_keys",)

    def __init__(self, secrets: Sequence[str]) -> None:
        """Take the secrets in force, newest first. Raises ValueError, quoting none of them."""
        if not secrets:
            raise ValueError("A webhook without a secret cannot be signed for.")
        self._keys = [decode(secret) for secret in secrets]

    def headers(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """Return the four signature headers of one attempt.

        `message_id` is the event's id, `timestamp` the attempt's time in whole Unix seconds, `body`
        the exact bytes to be sent.
        """
        content = f"{message_id}.{timestamp}.".encode() + body
        signatures = [hmac.digest(key, content, "sha256") for key in self._keys]
        in_base64 = (f"v1,{base64.b64encode(each).decode('ascii')}" for each in signatures)
        in_hex = (f"v2={each.hex()}" for each in signatures)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(in_base64),
            "x-service-signature-v2": ",".join([f"t={timestamp}", *in_hex]),
        }


def decode(secret: str) -> bytes:
    """Return the HMAC key of a secret. Raises ValueError, which quotes nothing of it."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"A webhook's secret begins with {PREFIX}.")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"A webhook's secret is {PREFIX} and base64.") from None
    if not key:
        raise ValueError("A webhook's secret is empty.")
    return key


ID, TIMESTAMP = "webhook-id", "webhook-timestamp"
STANDARD, OURS = "webhook-signature", "x-service-signature-v2"
_DIGEST_BYTES = 32
_HEX = frozenset("0123456789abcdefABCDEF")
# Each timestamp is signed with the body in every form, and each signature compared with all of it.
# Two that differ are a mistake already; a delivery has 20 signatures in a header at most.
_MOST_TIMESTAMPS, _MOST_SIGNATURES = 2, 50
# No event is longer, written compactly. Indented, a body that is nested deeply becomes hundreds of
# times as long.
_MOST_COMPACT = 256 * 1024
_MOST_INDENTED = 4 * _MOST_COMPACT


class Signature(NamedTuple):
    """One signature of a request: its bytes (None: unreadable), and what is wrong with its form."""

    digest: bytes | None
    fault: str | None


class Form(NamedTuple):
    """Bytes that serve as a key, or are signed; `mistake` says in what they are wrong, if so."""

    value: bytes
    mistake: str | None


def normalised(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers by their lower-case names, those of a CGI or WSGI environment included."""
    return {
        name.lower().replace("_", "-").removeprefix("http-"): value.strip()
        for name, value in headers.items()
    }


def timestamps(headers: Mapping[str, str]) -> list[str]:
    """Return two distinct timestamps of a request at most, that of `webhook-timestamp` first."""
    parts = [part.strip() for part in headers.get(OURS, "").split(",")]
    inside = [part.removeprefix("t=") for part in parts if part.startswith("t=")]
    distinct = dict.fromkeys([*filter(None, [headers.get(TIMESTAMP)]), *inside])
    return list(distinct)[:_MOST_TIMESTAMPS]


def signatures(headers: Mapping[str, str]) -> Iterator[Signature]:
    """Yield the signatures of both headers, the first 50 of each.

    Unknown versions are left out, as receivers do.
    """
    for text in headers.get(STANDARD, "").split()[:_MOST_SIGNATURES]:
        version, comma, value = text.partition(",")
        if not comma:
            wrong = f"{STANDARD} has a signature without `v1,` before it"
            yield Signature(_digest(text.removeprefix("v1=")), wrong)
        elif version == "v1":
            yield _in_base64(value)
    parts = filter(None, (each.strip() for each in headers.get(OURS, "").split(",")))
    for part in islice(parts, _MOST_SIGNATURES):
        version, _, value = part.partition("=")
        if version == "v2":
            yield _in_hex(value)
        elif version != "t" and "=" not in part:
            yield Signature(_digest(part), f"{OURS} has a signature without `v2=` before it")


def keys(secret: str) -> Iterator[Form]:
    """Yield the HMAC key of a secret, and then what it is mistaken for."""
    yield Form(decode(secret), None)
    bare = secret.removeprefix(PREFIX)
    yield Form(secret.encode(), f"The key is the whole text of the secret, {PREFIX} included")
    yield Form(bare.encode(), f"The key is the text after {PREFIX}, not decoded from base64")
    # Lenient decoders skip the underscore, or take it for base64url's.
    for spelled in (secret.replace("_", ""), secret.replace("_", "/")):
        text = spelled.rstrip("=")
        whole = text[: len(text) - (len(text) % 4 == 1)]
        key = base64.b64decode(whole + "=" * (-len(whole) % 4))
        yield Form(key, f"The prefix {PREFIX} was left in when the secret was decoded")


def rewritten(body: bytes) -> Iterator[Form]:
    """Yield what a body becomes that is parsed and written anew, by usual writers."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return
    for text in _written(parsed):
        yield Form(text.encode(errors="replace"), "the body was parsed and written anew")
    yield Form(body.rstrip() + b"\n", "a line break was added to the body")
    yield Form(body.rstrip(), "white space was taken off the body's end")


def _written(value: Any) -> Iterator[str]:
    """Yield a JSON value as usual writers write it, as far as it is not nested too deeply."""
    compact = (",", ":")
    try:
        text = json.dumps(value, separators=compact, ensure_ascii=False)
        if len(text) > _MOST_COMPACT:
            return
        yield text
        yield json.dumps(value, separators=compact)
        yield json.dumps(value)
        yield json.dumps(value, ensure_ascii=False)
        yield json.dumps(value, sort_keys=True)
        yield json.dumps(value, sort_keys=True, separators=compact, ensure_ascii=False)
        for indent in (2, 4):
            text = indented_json.beginning(value, _MOST_INDENTED, indent)
            if len(text) <= _MOST_INDENTED:
                yield text
    except RecursionError:
        return


def mistaken(message_id: str, stamps: Collection[str], body: bytes) -> Iterator[Form]:
    """Yield the bytes that are signed by mistake for a body, one at a time: each may be large."""
    for form in rewritten(body):
        if form.value != body:
            for at in stamps:
                yield Form(f"{message_id}.{at}.".encode() + form.value, form.mistake)
    without = "the signed content is {}, not webhook-id.webhook-timestamp.body"
    yield Form(body, without.format("the body alone"))
    yield Form(f"{message_id}.".encode() + body, without.format("webhook-id.body"))
    for at in stamps:
        yield Form(f"{at}.".encode() + body, without.format("timestamp.body"))
        yield Form(f"{at}.{message_id}.".encode() + body, without.format("timestamp.id.body"))


def _in_base64(value: str) -> Signature:
    if len(value) == 2 * _DIGEST_BYTES and _HEX.issuperset(value):
        return Signature(bytes.fromhex(value), f"{STANDARD} is in hex and should be in base64")
    digest = _digest(value)
    if digest is None or len(digest) != _DIGEST_BYTES:
        return Signature(None, f"{STANDARD} is no base64 of 32 bytes: cut off, or changed")
    if base64.b64encode(digest).decode() != value:
        return Signature(digest, f"{STANDARD} is in base64url or lacks its padding")
    return Signature(digest, None)


def _in_hex(value: str) -> Signature:
    if len(value) == 2 * _DIGEST_BYTES and _HEX.issuperset(value):
        wrong = None if value == value.lower() else f"{OURS} is in upper case, and hex is lower"
        return Signature(bytes.fromhex(value), wrong)
    digest = _digest(value)
    if digest is not None and len(digest) == _DIGEST_BYTES:
        return Signature(digest, f"{OURS} is in base64 and should be in hex")
    return Signature(None, f"{OURS} is no hex of 32 bytes: cut off, or changed")


def _digest(text: str) -> bytes | None:
    """Return the bytes of a text in hex, base64 or base64url; None for anything else."""
    if len(text) == 2 * _DIGEST_BYTES and _HEX.issuperset(text):
        return bytes.fromhex(text)
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
