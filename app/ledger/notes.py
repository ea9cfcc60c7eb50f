"""Signed notes (C2SP signed-note), and checkpoints, whose text says how large a log is.

Checked are Ed25519 over the text (0x01), and the witnesses' timestamped cosignatures (C2SP
tlog-cosignature): Ed25519 (0x04), and ML-DSA-44 (0x06) where OpenSSL knows it. Others are kept as
they came and never checked.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

from app.ledger.merkle import EMPTY_ROOT, HASH_BYTES, MAX_SIZE

ED25519 = 0x01
COSIGNATURE = 0x04
ML_DSA_44 = 0x06

MAX_SIGNATURES = 100
"""How many signature lines a note may have; the specification asks for 16 at least."""

_HASH_BYTES = 4
# Of each algorithm: the bytes of a public key, and of a signature.
_SIZES = {ED25519: (32, 64), COSIGNATURE: (32, 64), ML_DSA_44: (1312, 2420)}
_TIME_BYTES = 8
_VERIFIER_KEY = re.compile(r"([^+]+)\+([0-9a-f]{8})\+(.+)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")


class Malformed(ValueError):
    """A text is no signed note, verifier key or checkpoint in the one form that these have."""


class Unverified(ValueError):
    """A signature does not hold, or none is by a key that was asked for."""


def decode_base64(text: str) -> bytes:
    """Read standard base64 with padding (RFC 4648 section 4) in its one canonical spelling.

    Raises Malformed for any other.
    """
    try:
        data = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise Malformed("This is not base64.") from None
    if encode_base64(data) != text:
        raise Malformed("This base64 has another, canonical spelling.")
    return data


def encode_base64(data: bytes) -> str:
    """Write standard base64 with padding (RFC 4648 section 4)."""
    return b64encode(data).decode("ascii")


def key_hash(name: str, algorithm: int, public_key: bytes) -> bytes:
    """Return the 4 bytes that name a key: of SHA-256(name ‖ 0x0A ‖ algorithm ‖ public key)."""
    return sha256(name.encode() + b"\n" + bytes([algorithm]) + public_key).digest()[:_HASH_BYTES]


def check_name(name: str) -> str:
    """Return a key name as it is. Raises Malformed if it is empty or has spaces, `+`, controls."""
    odd = any(each == "+" or each < " " or each.isspace() for each in name)
    if not name or odd or not _is_unicode(name):
        raise Malformed("A key name is not empty, and has no spaces, plus or control characters.")
    return name


def check_text(text: str) -> None:
    """Raise Malformed for a text that no note can have."""
    if not text.endswith("\n") or _CONTROL.search(text) or not _is_unicode(text):
        raise Malformed("A note is UTF-8, ends with a newline and has no control characters.")


@dataclass(frozen=True)
class Signature:
    """One signature line: who is said to have signed, and the bytes behind the key hash."""

    name: str
    key_hash: bytes
    payload: bytes

    def __str__(self) -> str:
        return f"— {self.name} {encode_base64(self.key_hash + self.payload)}"

    @classmethod
    def parse(cls, line: str) -> "Signature":
        """Read a line without its newline. Raises Malformed."""
        dash, _, rest = line.partition(" ")
        name, _, blob = rest.partition(" ")
        if dash != "—":
            raise Malformed("A signature line begins with an em dash and a space.")
        data = decode_base64(blob)
        if len(data) <= _HASH_BYTES:
            raise Malformed("A signature has a key hash of 4 bytes and more.")
        return cls(check_name(name), data[:_HASH_BYTES], data[_HASH_BYTES:])


@dataclass(frozen=True)
class Signed:
    """A signature that holds: by which key, and when, in Unix seconds, for cosignatures."""

    key: "VerifierKey"
    seconds: int | None


@dataclass(frozen=True)
class VerifierKey:
    """A public key with the name it signs under; its text is `name+hash+base64` ("vkey")."""

    name: str
    key_hash: bytes
    algorithm: int
    public_key: bytes

    def __str__(self) -> str:
        key = encode_base64(bytes([self.algorithm]) + self.public_key)
        return f"{self.name}+{self.key_hash.hex()}+{key}"

    @classmethod
    def ed25519(cls, name: str, public_key: bytes, algorithm: int = ED25519) -> "VerifierKey":
        """Make one from the 32 bytes of an Ed25519 key. Raises Malformed for another name or size.

        `algorithm` is ED25519, or COSIGNATURE for the key of a witness.
        """
        key = cls(check_name(name), key_hash(name, algorithm, public_key), algorithm, public_key)
        key._check_size()
        return key

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        """Read `name+hash+base64`. Raises Malformed, also for a hash that is not the key's.

        The hash of a key of an algorithm that is not known here is believed: each has its own rule.
        """
        match = _VERIFIER_KEY.fullmatch(text)
        if match is None:
            raise Malformed("A verifier key is <name>+<8 hex digits>+<base64>.")
        data = decode_base64(match[3])
        if len(data) <= 1:
            raise Malformed("A verifier key has an algorithm and a public key.")
        stated = bytes.fromhex(match[2])
        key = cls(check_name(match[1]), stated, data[0], data[1:])
        if key.algorithm in _SIZES:
            key._check_size()
            if key_hash(key.name, key.algorithm, key.public_key) != stated:
                raise Malformed("The hash in this verifier key is not that of its name and key.")
        return key

    def _check_size(self) -> None:
        wanted, _ = _SIZES[self.algorithm]
        if len(self.public_key) != wanted:
            raise Malformed(
                f"A key of the type {self.algorithm:02x} has {wanted} bytes,"
                f" not {len(self.public_key)}."
            )

    @property
    def checkable(self) -> bool:
        """Whether signatures by this key can be checked here."""
        return self.algorithm in _SIZES and (self.algorithm != ML_DSA_44 or _knows_ml_dsa())

    def made(self, signature: Signature) -> bool:
        """Whether a signature line names this key; that says nothing of whether it holds."""
        return (self.name, self.key_hash) == (signature.name, signature.key_hash)

    def verify(self, text: str, signature: Signature) -> Signed:
        """Check a signature over a note's text. Raises Unverified if it does not hold.

        Also if it names another key, or one that is not `checkable`.
        """
        if not self.made(signature) or not self.checkable:
            raise Unverified(f"The signature by {signature.name} cannot be checked by this key.")
        seconds, raw = None, signature.payload
        if self.algorithm != ED25519:
            seconds, raw = int.from_bytes(raw[:_TIME_BYTES], "big"), raw[_TIME_BYTES:]
        if len(raw) != _SIZES[self.algorithm][1] or (seconds or 0) >= 1 << 63:
            raise Unverified(f"The signature by {self.name} has a wrong size or time.")
        try:
            if self.algorithm == ML_DSA_44:
                message = subtree_bytes(self.name, text, seconds or 0)
                MLDSA44PublicKey.from_public_bytes(self.public_key).verify(raw, message)
            else:
                message = text.encode() if seconds is None else cosigned_bytes(text, seconds)
                Ed25519PublicKey.from_public_bytes(self.public_key).verify(raw, message)
        except (InvalidSignature, ValueError):
            raise Unverified(f"The signature by {self.name} does not hold.") from None
        return Signed(self, seconds)


def cosigned_bytes(text: str, seconds: int) -> bytes:
    """Return what a witness signs (C2SP tlog-cosignature, "Ed25519 signed message")."""
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()


def subtree_bytes(name: str, text: str, seconds: int) -> bytes:
    """Return what a witness of this name signs with ML-DSA-44 (C2SP tlog-cosignature).

    Raises ValueError for a text that is no checkpoint, or names too long for the message.
    """
    origin, size, root, *_ = [*text.split("\n"), "", ""]
    names = [bytes([len(each)]) + each for each in (name.encode(), origin.encode())]
    numbers = [each.to_bytes(8, "big") for each in (seconds, 0, int(size))]
    hashed = decode_base64(root)
    if len(hashed) != sha256().digest_size:
        raise Malformed("The root of a checkpoint is a SHA-256.")
    return b"".join([b"subtree/v1\n\0", names[0], numbers[0], names[1], *numbers[1:], hashed])


@cache
def _knows_ml_dsa() -> bool:
    """Say whether the OpenSSL that `cryptography` brought can check ML-DSA (FIPS 204)."""
    try:
        MLDSA44PublicKey.from_public_bytes(bytes(_SIZES[ML_DSA_44][0]))
    except UnsupportedAlgorithm:
        return False
    return True


@dataclass(frozen=True)
class Signer:
    """A private key that signs notes under a name."""

    name: str
    private_key: Ed25519PrivateKey

    @cached_property
    def verifier_key(self) -> VerifierKey:
        """The verifier key (vkey) of its signatures."""
        return VerifierKey.ed25519(self.name, self.private_key.public_key().public_bytes_raw())

    def sign(self, text: str) -> Signature:
        """Sign a note's text."""
        key = self.verifier_key
        return Signature(key.name, key.key_hash, self.private_key.sign(text.encode()))


@dataclass(frozen=True)
class Note:
    """A text that ends with a newline, and its signature lines in their order, one at least."""

    text: str
    signatures: tuple[Signature, ...]

    def __post_init__(self) -> None:
        check_text(self.text)
        if not 0 < len(self.signatures) <= MAX_SIGNATURES:
            raise Malformed(f"A note has 1 to {MAX_SIGNATURES} signatures.")

    def __str__(self) -> str:
        return "".join([self.text, "\n", *(f"{each}\n" for each in self.signatures)])

    def __bytes__(self) -> bytes:
        return str(self).encode()

    @classmethod
    def parse(cls, data: bytes) -> "Note":
        """Read a note. Raises Malformed; nothing is verified yet, so do not act on its text."""
        try:
            whole = data.decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed("A note is UTF-8.") from None
        before, blank, lines = whole.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise Malformed("A note is a text, an empty line and signature lines.")
        if lines.count("\n") > MAX_SIGNATURES:
            raise Malformed(f"A note has 1 to {MAX_SIGNATURES} signatures.")
        signatures = map(Signature.parse, lines.removesuffix("\n").split("\n"))
        return cls(f"{before}\n", tuple(signatures))

    def with_signatures(self, more: Iterable[Signature]) -> "Note":
        """Return the note with lines appended, without those that it has already."""
        return replace(self, signatures=tuple(dict.fromkeys([*self.signatures, *more])))

    def signed_by(self, keys: Iterable[VerifierKey]) -> list[Signed]:
        """Return the signatures by these keys, in the order of the lines, each key's first only.

        Lines by other keys, and by keys that cannot be checked here, are passed over. Raises
        Unverified if one by these keys does not hold.
        """
        known = {(each.name, each.key_hash): each for each in keys if each.checkable}
        found: dict[VerifierKey, Signed] = {}
        for line in self.signatures:
            key = known.get((line.name, line.key_hash))
            if key is not None:
                found.setdefault(key, key.verify(self.text, line))
        return list(found.values())


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


_CHECKPOINT_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class Checkpoint:
    """A log's origin, the number of its leaves, and the root over them; without extension lines.

    Raises Malformed for what could not be written, or not be read back.
    """

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        if not self.origin or "\n" in self.origin:
            raise Malformed("The origin of a checkpoint is one line, and not empty.")
        if not 0 <= self.size <= MAX_SIZE or len(self.root) != HASH_BYTES:
            raise Malformed(f"A checkpoint has a size below 2^63 and a root of {HASH_BYTES} bytes.")
        if self.size == 0 and self.root != EMPTY_ROOT:
            raise Malformed("An empty tree has another root.")
        check_text(self.text)

    @property
    def text(self) -> str:
        """The note text."""
        return f"{self.origin}\n{self.size}\n{encode_base64(self.root)}\n"

    @classmethod
    def parse(cls, text: str) -> "Checkpoint":
        """Read a note text. Raises Malformed unless it is as `text` would write it."""
        *lines, end = text.split("\n")
        if end or len(lines) != 3:
            raise Malformed("A checkpoint is three lines, each ending with a newline.")
        origin, size, root = lines
        if not _CHECKPOINT_SIZE.fullmatch(size):
            raise Malformed("The second line of a checkpoint is its size, without leading zeros.")
        return cls(origin, int(size), decode_base64(root))

    def sign(self, signer: Signer) -> Note:
        """Return it as a note signed by the log, whose key has the origin as its name.

        Raises ValueError for a signer of another name.
        """
        if signer.name != self.origin:
            raise ValueError(f"{signer.name} does not sign for {self.origin}.")
        return Note(self.text, (signer.sign(self.text),))


def read_checkpoint(data: bytes, key: VerifierKey) -> Checkpoint:
    """Read a signed checkpoint of the log with this key.

    Raises Malformed, or Unverified if the log did not sign it or it has another origin.
    """
    note = Note.parse(data)
    if not note.signed_by([key]):
        raise Unverified("The note has no signature by a key that is known.")
    found = Checkpoint.parse(note.text)
    if found.origin != key.name:
        raise Unverified(f"The checkpoint is of {found.origin}, not of {key.name}.")
    return found
