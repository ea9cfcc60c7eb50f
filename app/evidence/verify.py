"""Checks an evidence pack, or an exported audit chain, without the service that made it.

    python3 -I -S verify.py [PACK.zip] [--key PEM]… [--policy FILE] [--tsa-ca PEM] [--strict]
    python3 -I -S verify.py audit CHAIN.ndjson [--head SEQ:HASH]… [--policy FILE] [--tsa-ca PEM]

Without a ZIP it checks the folder it stands in. One file, Python 3.8 or newer, the standard library
alone; it opens no connection and writes no file. Take it from where you trust it: the copy inside a
pack was put there by whoever made the pack.

--key     a public key (Ed25519, PEM) that you have from elsewhere, once for each: those that signed
          the bundle and the pack
--policy  a C2SP tlog-policy: the logs and witnesses that you trust, and how many of them you need
--tsa-ca  the root certificates (PEM) of the timestamping authorities that you trust
--head    with `audit`: an entry's number and hash that you kept; the chain must lead through it
--strict  what was not checked, or only against the pack's own keys, ends with 2

It prints one line a check, which begins with one of
    VALID        this holds
    NOT CHECKED  nobody said whom to believe, or this program knows no such algorithm
    INCOMPLETE   something is absent that was said to be here
    INVALID      this is not what it is said to be
and last what all of it comes to. It ends with
    0            nothing is INVALID or INCOMPLETE
    1            something is
    2            it could not be read; or, with --strict, not everything was checked

What VALID does not mean: that the record tells the truth. It means that nobody changed it.

From top to bottom: what is printed, JSON, Ed25519, signed notes and the Merkle tree, RSA and ECDSA,
certificates and timestamps, the ZIP, the pack, the audit chain, the command line.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import pathlib
import re
import stat
import struct
import sys
import zlib
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, BinaryIO, Callable, Dict, NamedTuple, Tuple, Union

MIB = 1 << 20
MAX_PACK = 512 * MIB
MAX_BUNDLE = 16 * MIB
MAX_LINE = 16 * MIB  # of an exported chain; its trailer has up to a hundred timestamps
MAX_SMALL = 1 * MIB  # every other file that is read as more than bytes
Data = Union[bytes, memoryview]
HEX_HASH = re.compile(r"[0-9a-f]{64}")


# --- What is printed -----------------------------------------------------------------------------


class Verdict(Exception):
    """What became of one check, if it is not VALID; the text says why."""

    status = ""


class Invalid(Verdict):
    """It is not what it is said to be."""

    status = "INVALID"


class Incomplete(Verdict):
    """Something is absent that was said to be here."""

    status = "INCOMPLETE"


class NotChecked(Verdict):
    """Nobody said whom to believe, or this program cannot check it."""

    status = "NOT CHECKED"


class Unreadable(Exception):
    """There is nothing here that could be checked."""


class Report:
    """The checks so far: their lines are printed as they are made."""

    def __init__(self) -> None:
        """Begin with none."""
        self.made: list[tuple[str, str]] = []

    def attempt(self, name: str, check: Callable[..., str], *arguments: Any) -> None:
        """Make one check: a function that returns what it found, or raises a Verdict."""
        try:
            status, detail = "VALID", check(*arguments)
        except Verdict as verdict:
            status, detail = verdict.status, str(verdict)
        self.made.append((status, name))
        show(f"{status:<12} {name}: {detail}")

    def ended(self, needed: tuple[str, ...], *, own: str, rooted: bool, strict: bool) -> int:
        """Print the last line and return the exit code; the `needed` checks must be VALID."""
        bad = []
        for status in ("INVALID", "INCOMPLETE"):
            names = dict.fromkeys(name for made, name in self.made if made == status)
            bad += [f"{status}: {', '.join(names)}"] if names else []
        if bad or not all(("VALID", name) in self.made for name in needed):
            show("; ".join(bad) or "INCOMPLETE: not all was there that must be checked")
            return 1
        unchecked = sum(made == "NOT CHECKED" for made, _ in self.made)
        if not rooted:
            show(f"VALID AGAINST {own} OWN KEYS")
        elif unchecked:
            show(f"VALID, WITH {unchecked} NOT CHECKED")
        else:
            show("VALID")
        return 2 if strict and (unchecked or not rooted) else 0


def show(line: str) -> None:
    """Print a line; what a forger wrote into it must not command a terminal."""
    plain = line.encode("ascii", "backslashreplace").decode("ascii")
    print("".join(each if " " <= each <= "~" else "?" for each in plain)[:2000])


# --- JSON: read strictly (RFC 7493), and written canonically (RFC 8785) ---------------------------


def read_json(data: Data) -> Any:
    """Read one JSON text of one meaning: no name twice, no NaN, no number that would be rounded."""
    try:
        return json.loads(
            str(data, "utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_double,
            parse_constant=_integer,
        )
    except RecursionError:
        raise Invalid("this JSON is nested too deep") from None
    except ValueError as error:
        raise Invalid(f"this is not JSON of one meaning ({error})") from None


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise ValueError("a name twice in one object")
    return found


def _integer(literal: str) -> int:
    number = int(literal) if len(literal) <= 17 and literal.lstrip("-").isdigit() else 1 << 60
    if abs(number) >= 1 << 53:
        raise ValueError("no such number")
    return number


def _double(literal: str) -> float:
    number = float(literal)
    if (1 << 53) <= abs(number) < 1e21 or abs(number) == float("inf"):
        raise ValueError("no such number")
    return number


def canonical(value: Any) -> bytes:
    """Write a value that was read as canonical JSON."""
    try:
        return _written(value).encode("utf-8")
    except RecursionError:
        raise Invalid("this JSON is nested too deep") from None
    except UnicodeEncodeError:
        raise Invalid("this JSON has half a character in it") from None


def _written(value: Any) -> str:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{{{}}}".format(
            ",".join(_written(name) + ":" + _written(value[name]) for name in names)
        )
    if isinstance(value, list):
        return "[{}]".format(",".join([_written(item) for item in value]))
    if isinstance(value, float):
        return _written_double(value)
    return json.dumps(value, ensure_ascii=False)


def _written_double(value: float) -> str:
    if value == 0:
        return "0"
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return mantissa[:-2] if mantissa.endswith(".0") else mantissa
    if -7 < int(exponent) < 21:
        return format(Decimal(text), "f")
    return f"{mantissa}e{int(exponent):+d}"


def read_canonical(data: Data) -> Any:
    """Read JSON that must be in its one canonical form."""
    value = read_json(data)
    if canonical(value) != data:
        raise Invalid("this is not canonical JSON")
    return value


KINDS: dict[str, type] = {
    "str": str,
    "int": int,
    "list": list,
    "dict": dict,
    "hash": bytes,
    "any": object,
}


def members(value: Any, spec: str) -> list[Any]:
    """Return the members of an object, which must be exactly these, of these types.

    `spec` is like "seq:int at:str". `int` is a number from 0 on, `hash` is in hex of lower case,
    and its bytes are returned.
    """
    kinds = dict(each.split(":") for each in spec.split())
    if not isinstance(value, dict) or set(value) != set(kinds):
        raise Invalid(f"an object does not have exactly the members {', '.join(sorted(kinds))}")
    found = []
    for name, kind in kinds.items():
        each: Any = value[name]
        if kind == "hash" and type(each) is str and HEX_HASH.fullmatch(each):
            each = bytes.fromhex(each)
        # The type itself: True is an int as well.
        typed = kind == "any" or type(each) is KINDS[kind]
        if not typed or (kind == "int" and each < 0):
            raise Invalid(f"{name} is not what it must be")
        found.append(each)
    return found


def from_base64(text: str) -> bytes:
    """Read standard base64 with padding, in its one canonical spelling."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Invalid("this is not base64") from None
    if to_base64(data) != text:
        raise Invalid("this base64 has another, canonical spelling")
    return data


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def sha256(data: Data) -> bytes:
    return hashlib.sha256(data).digest()


# --- Ed25519 (RFC 8032, section 5.1) -------------------------------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P

Point = Tuple[int, int, int, int]  # x = X/Z, y = Y/Z, x * y = T/Z
NEUTRAL: Point = (0, 1, 1, 0)


def _point(data: bytes) -> Point | None:
    """Decode a point (5.1.3); None if these 32 bytes are none."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & ((1 << 255) - 1)
    if y >= P:
        return None
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if (v * x * x + u) % P == 0:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (v * x * x - u) % P or (x == 0 and sign):
        return None
    x = x if x & 1 == sign else P - x
    return x, y, 1, x * y % P


def _sum(p: Point, q: Point) -> Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def _is_neutral(p: Point) -> bool:
    return p[0] == 0 and p[1] == p[2]


def _two_products(a: int, p: Point, b: int, q: Point) -> Point:
    """Return [a]p + [b]q."""
    table = (NEUTRAL, p, q, _sum(p, q))
    found = NEUTRAL
    for bit in range(252, -1, -1):
        found = _sum(found, found)
        found = _sum(found, table[(a >> bit & 1) + 2 * (b >> bit & 1)])
    return found


BASE = _point(bytes([0x58]) + bytes([0x66]) * 31) or NEUTRAL


def ed25519_verifies(public: bytes, signature: bytes, message: Data) -> bool:
    """Say whether R = [S]B - [k]A (5.1.7, without the cofactor, as OpenSSL does).

    A must be of the order L: with any other point more than one message has the same signature.
    """
    a = _point(public) if len(public) == 32 else None
    s = int.from_bytes(signature[32:], "little")
    if a is None or len(signature) != 64 or s >= L:
        return False
    if _is_neutral(a) or not _is_neutral(_two_products(L, a, 0, NEUTRAL)):
        return False
    digest = hashlib.sha512(signature[:32] + public)
    digest.update(message)
    k = int.from_bytes(digest.digest(), "little") % L
    found = _two_products(s, BASE, k, (P - a[0], a[1], a[2], P - a[3]))
    inverse = pow(found[2], P - 2, P)
    x, y = found[0] * inverse % P, found[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little") == signature[:32]


PEM = re.compile(rb"-----BEGIN ([A-Z ]{1,40})-----([A-Za-z0-9+/=\s]*)-----END \1-----")
ED25519_SPKI = bytes.fromhex("302a300506032b6570032100")


def public_key(pem: bytes) -> bytes:
    """Return the 32 bytes of the one Ed25519 public key in a PEM file (RFC 8410)."""
    found = PEM.fullmatch(pem.strip())
    der = from_base64("".join(found[2].decode().split())) if found else b""
    if found is None or found[1] != b"PUBLIC KEY" or der[:12] != ED25519_SPKI or len(der) != 44:
        raise Invalid("this is not one Ed25519 public key in PEM")
    return der[12:]


def key_id(public: bytes) -> str:
    """Return how the service calls a key: the start of the SHA-256 of its DER."""
    return sha256(ED25519_SPKI + public).hex()[:16]


# --- Signed notes, checkpoints, cosignatures, policies (C2SP) and the Merkle tree (RFC 9162) ------


class Key(NamedTuple):
    """A key with the name it signs notes under (C2SP signed-note)."""

    name: str
    hash: bytes
    algorithm: int
    public: bytes


class Line(NamedTuple):
    """A signature line of a note."""

    name: str
    hash: bytes
    payload: bytes


class Checkpoint(NamedTuple):
    """What a log says of itself: its origin, size and root, as the text that is signed."""

    text: bytes
    origin: str
    size: int
    root: bytes


ED25519, COSIGNATURE, ML_DSA_COSIGNATURE = 1, 4, 6


def read_key(text: str) -> Key:
    """Read a verifier key: <name>+<hash>+<base64 of algorithm and public key>."""
    found = re.fullmatch(r"([^+\s\x00-\x1f]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)", text)
    data = from_base64(found[3]) if found else b""
    if found is None or len(data) < 2:
        raise Invalid("this is not a verifier key")
    key = Key(found[1], bytes.fromhex(found[2]), data[0], data[1:])
    if key.algorithm in (ED25519, COSIGNATURE):
        named = sha256(found[1].encode("utf-8", "replace") + b"\n" + data)[:4]
        if len(key.public) != 32 or named != key.hash:
            raise Invalid("the hash in this verifier key is not that of its name and key")
    return key


def read_line(line: str) -> Line:
    """Read a signature line without its newline."""
    found = re.fullmatch(r"\u2014 ([^+\s\x00-\x1f]+) ([A-Za-z0-9+/=]+)", line)
    data = from_base64(found[2]) if found else b""
    if found is None or len(data) < 5:
        raise Invalid("this is not a signature line")
    return Line(found[1], data[:4], data[4:])


def line_holds(key: Key, line: Line, text: bytes) -> bool:
    """Say whether a line by this key, of a log or of a witness, is a signature of the text."""
    if key.algorithm == COSIGNATURE:
        seconds, signature = int.from_bytes(line.payload[:8], "big"), line.payload[8:]
        text = b"cosignature/v1\ntime %d\n" % seconds + text
        return seconds < 1 << 63 and ed25519_verifies(key.public, signature, text)
    return ed25519_verifies(key.public, line.payload, text)


def read_checkpoint(note: bytes, key: Key) -> Checkpoint:
    """Read a checkpoint that must have one signature, by the log with this key."""
    try:
        body, blank, line = str(note, "utf-8").rpartition("\n\n")
    except ValueError:
        raise Invalid("the checkpoint is not UTF-8") from None
    found = re.fullmatch(r"([^\n]+)\n(0|[1-9][0-9]{0,18})\n([^\n]+)", body)
    if not blank or found is None or not line.endswith("\n"):
        raise Invalid("this is not a checkpoint with one signature")
    signature, text = read_line(line[:-1]), (body + "\n").encode()
    root, size = from_base64(found[3]), int(found[2])
    if len(root) != 32 or size >= 1 << 63:
        raise Invalid("the checkpoint's size or root is none")
    if key.algorithm != ED25519 or (signature.name, signature.hash) != (key.name, key.hash):
        raise Invalid("the checkpoint is not signed by the log's key")
    if found[1] != key.name:
        raise Invalid("the checkpoint is of another log than its key")
    if not line_holds(key, signature, text):
        raise Invalid("the log's signature does not hold")
    return Checkpoint(text, found[1], size, root)


def included(leaf: bytes, index: int, size: int, path: list[bytes], root: bytes) -> bool:
    """Say whether the path leads from leaf `index` to the root (RFC 9162, section 2.1.3.2)."""
    found, node, last = sha256(b"\x00" + leaf), index, size - 1
    if not 0 <= index < size:
        return False
    for sibling in path:
        if last == 0:
            return False
        if node % 2 or node == last:
            found = sha256(b"\x01" + sibling + found)
            while node and node % 2 == 0:
                node, last = node // 2, last // 2
        else:
            found = sha256(b"\x01" + found + sibling)
        node, last = node // 2, last // 2
    return last == 0 and found == root


class Policy:
    """A C2SP tlog-policy: logs, witnesses, and which of these make a quorum."""

    def __init__(self, data: bytes) -> None:
        """Read it. Raises Invalid, naming the line."""
        self.logs: list[Key] = []
        self.witnesses: dict[str, Key] = {}
        self.groups: dict[str, tuple[int, list[str]]] = {}
        self.quorum = ""
        if re.search(rb"[^\t\n\x20-\x7e\x80-\xff]", data) or data[-1:] != b"\n":
            raise Invalid("a policy is lines of text, each with a newline at its end")
        for number, line in enumerate(str(data, "utf-8", "surrogateescape").split("\n"), 1):
            items = re.findall(r"[^ \t]+", line)
            if items and not items[0].startswith("#"):
                try:
                    self._take(items[0], items[1:])
                except Verdict as error:
                    raise Invalid(f"line {number}: {error}") from None
        if not self.quorum:
            raise Invalid("a policy has a quorum line")

    def _take(self, kind: str, items: list[str]) -> None:
        if kind == "log" and len(items) in (1, 2):
            key = read_key(items[0])
            self._require(key.algorithm == ED25519, "a log's key is Ed25519")
            self._require(key.public not in [log.public for log in self.logs], "this key is here")
            self.logs.append(key)
        elif kind == "witness" and len(items) in (2, 3):
            key = read_key(items[1])
            known = [witness.public for witness in self.witnesses.values()]
            self._require(key.algorithm in (COSIGNATURE, ML_DSA_COSIGNATURE), "no witness's key")
            self._require(key.public not in known, "this key is here already")
            self._require(self._is_new(items[0]), "this name is taken")
            self.witnesses[items[0]] = key
        elif kind == "group" and len(items) > 2:
            self._take_group(items[0], items[1], items[2:])
        elif kind == "quorum" and len(items) == 1:
            self._require(not self.quorum, "a policy has one quorum")
            known_name = items[0] == "none" or not self._is_new(items[0])
            self._require(known_name, "the quorum is no name from a line before")
            self.quorum = items[0]
        else:
            raise Invalid("not a log, witness, group or quorum line")

    def _take_group(self, name: str, threshold: str, names: list[str]) -> None:
        grouped = [each for _, group in self.groups.values() for each in group]
        for each in names:
            self._require(each != "none" and not self._is_new(each), "a member is not defined")
            self._require(grouped.count(each) + names.count(each) == 1, "a member stands twice")
        self._require(self._is_new(name), "this name is taken")
        needed = {"any": 1, "all": len(names)}.get(threshold)
        if needed is None and re.fullmatch(r"[1-9][0-9]{0,5}", threshold):
            needed = int(threshold)
        if needed is None or needed > len(names):
            raise Invalid("a group needs any, all, or 1 up to all of its members")
        self.groups[name] = (needed, names)

    def _is_new(self, name: str) -> bool:
        return name != "none" and name not in self.witnesses and name not in self.groups

    @staticmethod
    def _require(good: bool, why: str) -> None:
        if not good:
            raise Invalid(why)

    def is_met_by(self, names: list[str]) -> bool:
        """Say whether the witnesses with these names are a quorum."""
        met = {"none", *names}
        for name, (needed, group) in self.groups.items():  # in the order of their lines
            if len(met.intersection(group)) >= needed:
                met.add(name)
        return self.quorum in met


def check_log_key(key: Key, policy: Policy | None) -> str:
    """Hold the key of a log to the policy."""
    if policy is None or not policy.logs:
        raise NotChecked(f"nobody else says that {key.name} has this key: give --policy")
    if key not in policy.logs:
        raise Invalid(f"{key.name}, with this key, is no log that the policy lists")
    return f"the policy lists {key.name}"


def check_cosignatures(lines: list[Line], checkpoint: Checkpoint, policy: Policy | None) -> str:
    """Hold the cosignatures of a checkpoint to the policy."""
    if policy is None:
        raise NotChecked(f"{len(lines)}, by whom is not said: give --policy")
    known = {(key.name, key.hash): name for name, key in policy.witnesses.items()}
    good: dict[str, None] = {}
    others = 0
    for line in lines:
        name = known.get((line.name, line.hash))
        if name is None or policy.witnesses[name].algorithm != COSIGNATURE:
            others += 1
        elif line_holds(policy.witnesses[name], line, checkpoint.text):
            good[name] = None
        else:
            raise Invalid(f"the cosignature of {line.name} does not hold")
    found = f"{len(good)} by witnesses of the policy, {others} others not checked"
    if not policy.is_met_by(list(good)):
        raise Incomplete(f"{found}; the policy's quorum {policy.quorum} is not met")
    return f"{found}; the policy's quorum {policy.quorum} is met"


# --- DER (X.690), RSA (RFC 8017) and ECDSA (FIPS 186) ---------------------------------------------

INTEGER, BITS, OCTETS, OID, UTC_TIME, TIME = 0x02, 0x03, 0x04, 0x06, 0x17, 0x18
SEQUENCE, SET, BOOLEAN, NULL = 0x30, 0x31, 0x01, 0x05


class Der(NamedTuple):
    """A value in DER: its tag, its content, and both with the length between."""

    tag: int
    content: bytes
    raw: bytes

    def fields(self) -> Fields:
        """Return a reader of what is inside."""
        return Fields(self.content)


class Fields:
    """Reads values in DER one after the other. Raises Invalid for whatever is not as it must be."""

    def __init__(self, data: bytes) -> None:
        """Begin before the first."""
        self.data = data
        self.at = 0

    def more(self) -> bool:
        """Say whether a value is left."""
        return self.at < len(self.data)

    def any(self) -> Der:
        """Return the next value, whatever it is."""
        head = self.data[self.at : self.at + 6]
        if len(head) < 2 or head[0] & 0x1F == 0x1F:
            raise Invalid("this is not DER")
        length, size = head[1], 2
        if length >= 0x80:
            size += length - 0x80
            length = int.from_bytes(head[2:size], "big")
            if not 2 < size <= len(head) or length < max(0x80, 1 << 8 * (size - 3)):
                raise Invalid("this is not DER")
        start, end = self.at + size, self.at + size + length
        if end > len(self.data):
            raise Invalid("this is not DER")
        found = Der(head[0], self.data[start:end], self.data[self.at : end])
        self.at = end
        return found

    def next(self, tag: int) -> Der:
        """Return the next value, which must have this tag."""
        found = self.any()
        if found.tag != tag:
            raise Invalid("a value in DER has another type")
        return found

    def maybe(self, tag: int) -> Der | None:
        """Return the next value if it has this tag."""
        return self.any() if self.data[self.at : self.at + 1] == bytes([tag]) else None

    def end(self) -> None:
        """Expect nothing more."""
        if self.more():
            raise Invalid("there is more in DER than there may be")

    def flag(self) -> bool:
        """Return whether the next value is TRUE; FALSE is left out."""
        found = self.maybe(BOOLEAN)
        if found is not None and found.content != b"\xff":
            raise Invalid("this is not a boolean in DER")
        return found is not None

    def integer(self) -> int:
        """Return the next value, an INTEGER."""
        return integer(self.next(INTEGER))

    def oid(self) -> str:
        """Return the next value, an OBJECT IDENTIFIER, in dots."""
        content = self.next(OID).content
        if not 0 < len(content) <= 64 or content[-1] & 0x80:
            raise Invalid("this is not an object identifier")
        arcs, value = [], 0
        for byte in content:
            if value == 0 and byte == 0x80:
                raise Invalid("this is not an object identifier")
            value = value << 7 | byte & 0x7F
            if not byte & 0x80:
                arcs.append(value)
                value = 0
        first = min(arcs[0] // 40, 2)
        return ".".join(map(str, [first, arcs[0] - 40 * first, *arcs[1:]]))

    def algorithm(self) -> tuple[str, bytes]:
        """Return the next value, an AlgorithmIdentifier: its OID and its parameters in DER."""
        inner = self.next(SEQUENCE).fields()
        name, parameters = inner.oid(), inner.any().raw if inner.more() else b""
        inner.end()
        return name, b"" if parameters == b"\x05\x00" else parameters

    def bits(self) -> bytes:
        """Return the next value, a BIT STRING of whole bytes."""
        content = self.next(BITS).content
        if content[:1] != b"\x00":
            raise Invalid("this is not a string of whole bytes")
        return content[1:]

    def time(self) -> datetime:
        """Return the next value, a UTCTime or GeneralizedTime in UTC, cut to microseconds."""
        found = self.any()
        form = {UTC_TIME: rb"(\d{2})", TIME: rb"(\d{4})"}.get(found.tag, rb"(?!)")
        fraction = rb"(?:\.(\d*[1-9]))?" if found.tag == TIME else rb"()"
        parts = re.fullmatch(
            form + rb"(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)" + fraction + b"Z", found.content
        )
        if parts is None:
            raise Invalid("this is not a time in UTC")
        year, month, day, hour, minute, second = (int(part) for part in parts.groups()[:6])
        if found.tag == UTC_TIME:
            year += 1900 if year >= 50 else 2000
        micro = int((parts[7] or b"").decode()[:6].ljust(6, "0"))
        try:
            return datetime(year, month, day, hour, minute, second, micro, timezone.utc)
        except ValueError:
            raise Invalid("this time is on no clock") from None


def integer(value: Der) -> int:
    """Return an INTEGER, which must be in its shortest form."""
    found = int.from_bytes(value.content, "big", signed=True)
    if len(value.content) != (found + (found < 0)).bit_length() // 8 + 1:
        raise Invalid("this is not an integer in DER")
    return found


def whole(data: bytes, tag: int) -> Fields:
    """Return a reader of what is inside the one value that these bytes are."""
    outer = Fields(data)
    found = outer.next(tag)
    outer.end()
    return found.fields()


class Curve(NamedTuple):
    """y² = x³ - 3x + b modulo p, with the base point (x, y) of order n."""

    p: int
    b: int
    x: int
    y: int
    n: int


P256 = """
FFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296
4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5
FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""
P384 = """
FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEFFFFFFFF0000000000000000FFFFFFFF
B3312FA7E23EE7E4988E056BE3F82D19181D9C6EFE8141120314088F5013875AC656398D8A2ED19D2A85C8EDD3EC2AEF
AA87CA22BE8B05378EB1C71EF320AD746E1D3B628BA79B9859F741E082542A385502F25DBF55296C3A545E3872760AB7
3617DE4A96262C6F5D9E98BF9292DC29F8F41DBD289A147CE9DA3113B5F0B8C00A60B1CE1D7E819D7A431D7C90EA0E5F
FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973
"""
CURVES = {
    "1.2.840.10045.3.1.7": Curve(*(int(each, 16) for each in P256.split())),
    "1.3.132.0.34": Curve(*(int(each, 16) for each in P384.split())),
}

Jacobian = Tuple[int, int, int]  # x = X/Z², y = Y/Z³; Z = 0 is the point at infinity


def _doubled(p: int, point: Jacobian) -> Jacobian:
    x, y, z = point
    delta, gamma = z * z % p, y * y % p
    beta, alpha = x * gamma % p, 3 * (x - delta) * (x + delta) % p
    x3 = (alpha * alpha - 8 * beta) % p
    z3 = ((y + z) * (y + z) - gamma - delta) % p
    return x3, (alpha * (4 * beta - x3) - 8 * gamma * gamma) % p, z3


def _added(p: int, one: Jacobian, other: Jacobian) -> Jacobian:
    if one[2] == 0 or other[2] == 0:
        return other if one[2] == 0 else one
    z1z1, z2z2 = one[2] * one[2] % p, other[2] * other[2] % p
    u1, u2 = one[0] * z2z2 % p, other[0] * z1z1 % p
    s1, s2 = one[1] * other[2] * z2z2 % p, other[1] * one[2] * z1z1 % p
    h, r = (u2 - u1) % p, (s2 - s1) % p
    if h == 0:
        return (1, 1, 0) if r else _doubled(p, one)
    v, hhh = u1 * h * h % p, h * h * h % p
    x3 = (r * r - hhh - 2 * v) % p
    return x3, (r * (v - x3) - s1 * hhh) % p, one[2] * other[2] * h % p


def ecdsa_verifies(curve: Curve, public: bytes, signature: bytes, digest: bytes) -> bool:
    """Say whether an ECDSA signature (in DER) by an uncompressed point holds (FIPS 186-5)."""
    p, n, size = curve.p, curve.n, (curve.p.bit_length() + 7) // 8
    x, y = int.from_bytes(public[1 : 1 + size], "big"), int.from_bytes(public[1 + size :], "big")
    if len(public) != 1 + 2 * size or public[0] != 4 or max(x, y) >= p:
        return False
    fields = whole(signature, SEQUENCE)
    r, s = fields.integer(), fields.integer()
    fields.end()
    if (y * y - x * x * x + 3 * x - curve.b) % p or not (0 < r < n and 0 < s < n):
        return False
    e = int.from_bytes(digest, "big") >> max(0, 8 * len(digest) - n.bit_length())
    w = pow(s, n - 2, n)
    u1, u2 = e * w % n, r * w % n
    base, key = (curve.x, curve.y, 1), (x, y, 1)
    table = ((1, 1, 0), base, key, _added(p, base, key))
    found: Jacobian = (1, 1, 0)
    for bit in range(n.bit_length() - 1, -1, -1):
        found = _doubled(p, found)
        found = _added(p, found, table[(u1 >> bit & 1) + 2 * (u2 >> bit & 1)])
    return found[2] != 0 and found[0] * pow(found[2], p - 3, p) % p % n == r


DIGESTS = {
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
DIGEST_INFO = {
    "sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
    "sha384": bytes.fromhex("3041300d060960864801650304020205000430"),
    "sha512": bytes.fromhex("3051300d060960864801650304020305000440"),
}
RSA_KEY, EC_KEY = "1.2.840.113549.1.1.1", "1.2.840.10045.2.1"
SIGNATURES = {
    "1.2.840.113549.1.1.11": (RSA_KEY, "sha256"),
    "1.2.840.113549.1.1.12": (RSA_KEY, "sha384"),
    "1.2.840.113549.1.1.13": (RSA_KEY, "sha512"),
    "1.2.840.10045.4.3.2": (EC_KEY, "sha256"),
    "1.2.840.10045.4.3.3": (EC_KEY, "sha384"),
    "1.2.840.10045.4.3.4": (EC_KEY, "sha512"),
}


def rsa_verifies(key: bytes, signature: bytes, digest: bytes, algorithm: str) -> bool:
    """Say whether an RSA signature with PKCS#1 v1.5 holds (RFC 8017, section 8.2.2)."""
    fields = whole(key, SEQUENCE)
    n, e = fields.integer(), fields.integer()
    fields.end()
    if not 2048 <= n.bit_length() <= 8192 or not 2 < e < 1 << 32 or n < 0:
        raise NotChecked(f"an RSA key of {n.bit_length()} bits is not one this program checks")
    size, value = (n.bit_length() + 7) // 8, int.from_bytes(signature, "big")
    info = DIGEST_INFO[algorithm] + digest
    padded = b"\x00\x01" + b"\xff" * (size - 3 - len(info)) + b"\x00" + info
    return len(signature) == size and value < n and pow(value, e, n).to_bytes(size, "big") == padded


def signature_verifies(
    spki: bytes, algorithm: str, hashed: str, signature: bytes, m: bytes
) -> bool:
    """Say whether a signature by the key in a SubjectPublicKeyInfo holds.

    `algorithm` is an OID; `hashed` names the digest, where the algorithm leaves that open.
    """
    kind, digest = SIGNATURES.get(algorithm, (algorithm, hashed))
    fields = whole(spki, SEQUENCE)
    (key_kind, parameters), key = fields.algorithm(), fields.bits()
    if kind not in (RSA_KEY, EC_KEY) or algorithm == EC_KEY or digest not in DIGEST_INFO:
        raise NotChecked(f"{algorithm} is an algorithm this program does not check")
    if hashed and hashed != digest:
        raise NotChecked("two digests in one signature are not what this program checks")
    if key_kind != kind:
        raise Invalid("the key is of another kind than the signature")
    if kind == RSA_KEY:
        return rsa_verifies(key, signature, hashlib.new(digest, m).digest(), digest)
    curve = Fields(parameters).oid() if parameters[:1] == bytes([OID]) else "(explicit)"
    if curve not in CURVES:
        raise NotChecked(f"{curve} is a curve this program does not check")
    return ecdsa_verifies(CURVES[curve], key, signature, hashlib.new(digest, m).digest())


# --- Certificates (RFC 5280) and timestamps (RFC 3161 over CMS, RFC 5652) -------------------------

BASIC_CONSTRAINTS, KEY_USAGE, EXTENDED_USAGE = "2.5.29.19", "2.5.29.15", "2.5.29.37"
TIMESTAMPING, ANY_USAGE = "1.3.6.1.5.5.7.3.8", "2.5.29.37.0"
UNDERSTOOD = (BASIC_CONSTRAINTS, KEY_USAGE, EXTENDED_USAGE)


class Certificate:
    """An X.509 certificate."""

    def __init__(self, raw: bytes) -> None:
        """Read it from DER."""
        self.raw = raw
        outer = whole(raw, SEQUENCE)
        signed = outer.next(SEQUENCE)
        self.signed, self.algorithm = signed.raw, outer.algorithm()[0]
        self.signature = outer.bits()
        outer.end()
        fields = signed.fields()
        fields.maybe(0xA0)
        self.serial = fields.integer()
        if fields.algorithm()[0] != self.algorithm:
            raise Invalid("a certificate names two algorithms")
        self.issuer = fields.next(SEQUENCE).raw
        dates = fields.next(SEQUENCE).fields()
        self.begin, self.end = dates.time(), dates.time()
        self.subject = fields.next(SEQUENCE).raw
        self.spki = fields.next(SEQUENCE).raw
        self.extensions: dict[str, tuple[bool, bytes]] = {}
        fields.maybe(0x81)
        fields.maybe(0x82)
        listed = fields.maybe(0xA3)
        fields.end()
        inner = whole(listed.content, SEQUENCE) if listed else Fields(b"")
        while inner.more():
            extension = inner.next(SEQUENCE).fields()
            name, critical = extension.oid(), extension.flag()
            if name in self.extensions:
                raise Invalid("a certificate has an extension twice")
            self.extensions[name] = (critical, extension.next(OCTETS).content)
            extension.end()

    def check(self, moment: datetime) -> None:
        """Check what holds for every certificate of a chain."""
        if not self.begin <= moment <= self.end:
            raise Invalid(f"a certificate was not valid at {moment.isoformat()}")
        for name, (critical, _) in self.extensions.items():
            if critical and name not in UNDERSTOOD:
                raise NotChecked(f"a certificate's critical extension {name} is not understood")

    def may(self, bit: int) -> bool:
        """Say whether the key usage, if there is one, has this bit."""
        _, value = self.extensions.get(KEY_USAGE, (True, b"\x03\x02\x00\xff"))
        content = Fields(value).next(BITS).content[1:2]
        return bool(content) and bool(content[0] >> (7 - bit) & 1)

    def usages(self) -> list[str]:
        """Return the purposes in the extended key usage."""
        found = []
        if EXTENDED_USAGE in self.extensions:
            fields = whole(self.extensions[EXTENDED_USAGE][1], SEQUENCE)
            while fields.more():
                found.append(fields.oid())
        return found

    def check_issuer(self, below: int) -> None:
        """Check that it may issue a certificate with `below` issuers beneath it."""
        fields = whole(self.extensions.get(BASIC_CONSTRAINTS, (True, b"\x30\x00"))[1], SEQUENCE)
        authority, most = fields.flag(), fields.integer() if fields.more() else below
        if not authority or below > most or not self.may(5):
            raise Invalid("a certificate in the chain may not issue this one")
        if self.usages() and not {TIMESTAMPING, ANY_USAGE} & set(self.usages()):
            raise Invalid("a certificate in the chain may not issue for timestamping")

    def issued(self, other: Certificate) -> bool:
        """Say whether it signed the other one."""
        return self.subject == other.issuer and signature_verifies(
            self.spki, other.algorithm, "", other.signature, other.signed
        )


def certificates(pem: bytes) -> list[Certificate]:
    """Read all certificates of a PEM file; whatever stands between them is a comment."""
    found = [each for each in PEM.finditer(pem) if each[1] == b"CERTIFICATE"]
    if not 0 < len(found) <= 200 or pem.count(b"-----BEGIN CERTIFICATE-----") != len(found):
        raise Invalid("this is not a file of certificates in PEM")
    return [Certificate(from_base64("".join(each[2].decode().split()))) for each in found]


def check_chain(
    signer: Certificate, known: list[Certificate], roots: list[Certificate], moment: datetime
) -> None:
    """Check that a chain leads from the signer of a timestamp to one of the roots."""
    critical, _ = signer.extensions.get(EXTENDED_USAGE, (False, b""))
    if not critical or signer.usages() != [TIMESTAMPING]:
        raise Invalid("the signer's certificate is not for timestamping alone, and critically")
    if not (signer.may(0) or signer.may(1)):
        raise Invalid("the signer's certificate is not for signatures")
    trusted, tried = {root.raw for root in roots}, set()

    def climb(here: Certificate, below: int) -> None:
        here.check(moment)
        reason: Verdict = Invalid("no chain leads from the signer to a root that is trusted")
        for each in [] if here.raw in trusted else roots + known:
            if each.raw not in tried and each.raw != here.raw and each.issued(here):
                tried.add(each.raw)
                try:
                    each.check_issuer(below)
                    return climb(each, below + 1)
                except Verdict as verdict:
                    reason = verdict
        if here.raw not in trusted:
            raise reason
        return None

    climb(signer, 0)


class Token(NamedTuple):
    """What an RFC 3161 response says and who signed that."""

    moment: datetime
    imprint: bytes
    info: bytes
    certificates: list[Certificate]
    signer: Fields


TIMESTAMP_INFO = "1.2.840.113549.1.9.16.1.4"
CONTENT_TYPE, MESSAGE_DIGEST = "1.2.840.113549.1.9.3", "1.2.840.113549.1.9.4"
SIGNED_BY, SIGNED_BY_V2 = "1.2.840.113549.1.9.16.2.12", "1.2.840.113549.1.9.16.2.47"


def read_token(response: bytes) -> Token:
    """Read a TimeStampResp (RFC 3161, section 2.4.2) that was granted."""
    outer = whole(response, SEQUENCE)
    if outer.next(SEQUENCE).fields().integer() not in (0, 1):
        raise Invalid("the timestamp was not granted")
    content = outer.next(SEQUENCE).fields()
    outer.end()
    if content.oid() != "1.2.840.113549.1.7.2":
        raise Invalid("the timestamp is not signed data")
    signed = whole(content.next(0xA0).content, SEQUENCE)
    content.end()
    if signed.integer() not in (3, 4, 5):
        raise Invalid("the timestamp's signed data is of another version")
    signed.next(SET)
    inner = signed.next(SEQUENCE).fields()
    if inner.oid() != TIMESTAMP_INFO:
        raise Invalid("what is signed is not a timestamp")
    info = Fields(inner.next(0xA0).content).next(OCTETS).content
    inner.end()
    held = signed.maybe(0xA0)
    signed.maybe(0xA1)
    signers = signed.next(SET).fields()
    signed.end()
    signer = signers.next(SEQUENCE).fields()
    signers.end()
    found: list[Certificate] = []
    listed = Fields(held.content if held else b"")
    while listed.more() and len(found) < 50:
        found.append(Certificate(listed.next(SEQUENCE).raw))
    fields = whole(info, SEQUENCE)
    version, _ = fields.integer(), fields.oid()
    imprint = fields.next(SEQUENCE).fields()
    if version != 1 or DIGESTS.get(imprint.algorithm()[0]) != "sha256":
        raise Invalid("the timestamp is not of a SHA-256")
    hashed = imprint.next(OCTETS).content
    fields.integer()
    return Token(fields.time(), hashed, info, found, signer)


def check_timestamp(
    response: bytes, data: bytes, chain: bytes, roots: list[Certificate] | None
) -> datetime:
    """Check a timestamp of `data`, at its own time; return that.

    `chain` is PEM with more certificates; what is self-issued in it is trusted if `roots` is None.
    """
    token = read_token(response)
    if token.imprint != sha256(data):
        raise Invalid("the timestamp is of other bytes")
    known = token.certificates + certificates(chain)
    if roots is None:
        roots = [each for each in certificates(chain) if each.subject == each.issuer]
    fields = token.signer
    version, named = fields.integer(), fields.any()
    if version != (1 if named.tag == SEQUENCE else 3):
        raise Invalid("the timestamp's signer is told of in another version")
    hashed = DIGESTS.get(fields.algorithm()[0], "")
    attributes = fields.next(0xA0)
    algorithm, signature = fields.algorithm()[0], fields.next(OCTETS).content
    fields.maybe(0xA1)
    fields.end()
    if not hashed:
        raise NotChecked("the digest of the signature is not one this program checks")
    signer = _signer(named, known)
    _check_attributes(_attributes(attributes), token.info, hashed, signer)
    signed = bytes([SET]) + attributes.raw[1:]
    if not signature_verifies(signer.spki, algorithm, hashed, signature, signed):
        raise Invalid("the timestamp's signature does not hold")
    check_chain(signer, known, roots, token.moment)
    return token.moment


def _signer(named: Der, known: list[Certificate]) -> Certificate:
    for each in known:
        key_id = each.extensions.get("2.5.29.14", (False, b""))[1]
        if named.tag == SEQUENCE:
            fields = named.fields()
            if (fields.next(SEQUENCE).raw, fields.integer()) == (each.issuer, each.serial):
                return each
        elif named.tag == 0x80 and key_id == bytes([OCTETS, len(named.content)]) + named.content:
            return each
    raise Invalid("the certificate that signed the timestamp is not here")


def _attributes(value: Der) -> dict[str, Der]:
    found: dict[str, Der] = {}
    fields = value.fields()
    while fields.more():
        attribute = fields.next(SEQUENCE).fields()
        name, values = attribute.oid(), attribute.next(SET).fields()
        attribute.end()
        if name in found:
            raise Invalid("a signed attribute stands twice")
        found[name] = values.any()
        if name in (CONTENT_TYPE, MESSAGE_DIGEST, SIGNED_BY, SIGNED_BY_V2):
            values.end()
    return found


def _check_attributes(found: dict[str, Der], info: bytes, hashed: str, signer: Certificate) -> None:
    """Check what is signed: the kind and digest of the content, and which certificate signed."""
    kind, digest = found.get(CONTENT_TYPE), found.get(MESSAGE_DIGEST)
    if kind is None or Fields(kind.raw).oid() != TIMESTAMP_INFO:
        raise Invalid("the signed attributes name another kind of content")
    if digest is None or digest.content != hashlib.new(hashed, info).digest():
        raise Invalid("the signed attributes have another digest")
    if SIGNED_BY not in found and SIGNED_BY_V2 not in found:
        raise Invalid("the signed attributes do not name the certificate")
    for name in {SIGNED_BY, SIGNED_BY_V2} & set(found):
        # The first ESSCertID in SigningCertificate's first field (RFC 2634, RFC 5035).
        first = found[name].fields().next(SEQUENCE).fields().next(SEQUENCE).fields()
        algorithm = "sha1" if name == SIGNED_BY else "sha256"
        if name == SIGNED_BY_V2 and first.data[:1] == bytes([SEQUENCE]):
            algorithm = DIGESTS.get(first.algorithm()[0], "")
        if not algorithm:
            raise NotChecked("the certificate is named by a digest this program does not check")
        if first.next(OCTETS).content != hashlib.new(algorithm, signer.raw).digest():
            raise Invalid("the signed attributes name another certificate")


# --- The ZIP: nothing but the bytes that its files make, so nothing hides in it -------------------

LOCAL, CENTRAL, END = struct.Struct("<4s5H3I2H"), struct.Struct("<4s6H3I5H2I"), 22
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Files = Dict[str, memoryview]


def unzip(data: memoryview) -> Files:
    """Take a ZIP apart that must be as packs are: stored, sorted, dated 1980, nothing between."""
    if len(data) < END or bytes(data[:2]) != b"PK":
        raise Unreadable("this is not a ZIP")
    magic, disk, first, here, count, size, start, comment = struct.unpack("<4s4H2IH", data[-END:])
    end = (disk, first, here, comment, start + size)
    if magic != b"PK\5\6" or end != (0, 0, count, 0, len(data) - END) or count > 64:
        raise Invalid("the end of the ZIP is not as it must be, or something follows it")
    files: Files = {}
    offset, at = 0, start
    for _ in range(count):
        name, crc, length, listed = _listed(data[at : start + size], offset)
        head = LOCAL.pack(b"PK\3\4", *_shared(name, crc, length)) + name.encode()
        begin, offset = offset + len(head), offset + len(head) + length
        if data[begin - len(head) : begin] != head or offset > start:
            raise Invalid(f"{name}: what stands before it in the ZIP is not as it must be")
        if name <= max(files, default="") or zlib.crc32(data[begin:offset]) != crc:
            raise Invalid(f"{name}: it is not in its order, or its CRC-32 not that of its bytes")
        files[name] = data[begin:offset]
        at += listed
    if (offset, at) != (start, start + size):
        raise Invalid("something stands between the files of the ZIP and its directory")
    return files


def _shared(name: str, crc: int, length: int) -> tuple[int, ...]:
    return 20, 0, 0, 0, 0x21, crc, length, length, len(name), 0


def _listed(rest: memoryview, offset: int) -> tuple[str, int, int, int]:
    """Read an entry of the directory for the file at `offset`: name, CRC-32, size, own length."""
    if len(rest) < CENTRAL.size:
        raise Invalid("the ZIP's directory is cut off")
    fields = CENTRAL.unpack(rest[: CENTRAL.size])
    raw = bytes(rest[CENTRAL.size : CENTRAL.size + fields[10]])
    name = raw.decode("latin-1")
    if not FILE_NAME.fullmatch(name):
        raise Invalid(f"{name[:64]!r} is no name of a file in a pack")
    shared = _shared(name, fields[7], fields[8])
    entry = CENTRAL.pack(b"PK\1\2", 0x314, *shared, 0, 0, 0, 0o100644 << 16, offset) + raw
    if rest[: len(entry)] != entry:
        raise Invalid(f"{name}: its entry in the ZIP's directory is not as it must be")
    return name, fields[7], fields[8], len(entry)


def read_folder(folder: pathlib.Path) -> Files:
    """Read the files of an unzipped pack; a link or a folder among them is refused."""
    files: Files = {}
    room = MAX_PACK
    for path in sorted(folder.iterdir()):
        if not stat.S_ISREG(path.lstat().st_mode) or not FILE_NAME.fullmatch(path.name):
            raise Invalid(f"{path.name[:64]!r} is not a plain file of a pack")
        files[path.name] = memoryview(read_file(path, room))
        room -= len(files[path.name])
        if len(files) > 64:
            raise Invalid("there are too many files in this folder")
    return files


def read_file(path: pathlib.Path, limit: int) -> bytes:
    """Read a whole file of up to `limit` bytes."""
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:
        raise Unreadable(f"{path} has more than {limit} bytes")
    return data


# --- The pack ------------------------------------------------------------------------------------


class Roots(NamedTuple):
    """Whom the caller believes, from outside; None for what was not given."""

    keys: list[bytes] | None
    policy: Policy | None
    authorities: list[Certificate] | None


class Anchor(NamedTuple):
    """A leaf's place in a log, and who else vouches for the checkpoint."""

    key: Key
    place: int
    leaf: bytes
    path: list[bytes]
    note: bytes
    checkpoint: Checkpoint
    lines: list[Line]


def read_anchor(vkey: str, proof: Any, cosignatures: list[Any]) -> Anchor:
    """Read a log-proof with its log's key and cosignatures, and check the log's signature."""
    place, data, leaf_hash, size, path, note = members(
        proof,
        "leaf_index:int leaf_data:str leaf_hash:hash tree_size:int inclusion:list checkpoint:str",
    )
    key, leaf, note = read_key(vkey), from_base64(data), note.encode("utf-8", "replace")
    checkpoint = read_checkpoint(note, key)
    if size != checkpoint.size or leaf_hash != sha256(b"\x00" + leaf):
        raise Invalid("its size is not the checkpoint's, or leaf_hash not that of leaf_data")
    if len(path) > 63 or len(cosignatures) > 99:
        raise Invalid("the path or the list of cosignatures is too long")
    hashes = [members({"hash": each}, "hash:hash")[0] for each in path]
    lines = [read_line(members({"line": each}, "line:str")[0]) for each in cosignatures]
    if (key.name, key.hash) in [line[:2] for line in lines]:
        raise Invalid("the log's own signature is no cosignature")
    return Anchor(key, place, leaf, hashes, note, checkpoint, lines)


def check_inclusion(anchor: Anchor, leaf: dict[str, Any]) -> str:
    if anchor.leaf != canonical(leaf):
        raise Invalid("the leaf is another one's")
    at = anchor.checkpoint
    if not included(anchor.leaf, anchor.place, at.size, anchor.path, at.root):
        raise Invalid("the path does not lead from the leaf to the checkpoint's root")
    return f"it is leaf {anchor.place} of {at.size} in {at.origin}"


STAMPED = {"checkpoint.tsr", "tsa-chain.pem"}
SUMMED = {"README.txt", "anchor.json", "bundle.json", "bundle.sig", "checkpoint", "pack-key.pem"}
SUMMED |= {"prov.json", "public-key.pem", "record.tlog-proof", "verify.py"}
OTHERS = {"SHA256SUMS", "SHA256SUMS.sig", "manifest.json"}


class Pack:
    """The checks of one pack. What one of them finds, later ones use."""

    def __init__(self, files: Files, roots: Roots, report: Report, *, inside: bool) -> None:
        """Take the files of a pack; `inside` tells that this program is one of them."""
        self.files = files
        self.roots = roots
        self.report = report
        self.inside = inside
        self.sums: dict[str, str] = {}
        self.found: dict[str, Any] = {}

    def check(self) -> bool:
        """Make every check; say whether the keys of bundle and pack are known from outside."""
        attempt, files = self.report.attempt, self.files
        attempt("SHA256SUMS.sig", self.check_signature, "SHA256SUMS", "pack-key.pem")
        attempt("SHA256SUMS", self.read_sums)
        for name in sorted(self.sums):
            if name not in files or hashlib.sha256(files[name]).hexdigest() != self.sums[name]:
                attempt(name, self.refuse, name)
        attempt("files", self.check_files)
        attempt("bundle.json", self.read_bundle)
        attempt("bundle.sig", self.check_signature, "bundle.json", "public-key.pem")
        attempt("public-key.pem", self.check_key, "public-key.pem")
        attempt("pack-key.pem", self.check_key, "pack-key.pem")
        attempt("anchor.json", self.read_anchor)
        attempt("inclusion", self.check_inclusion)
        attempt("checkpoint", self.check_checkpoint)
        attempt("the log's key", lambda: check_log_key(self.need("anchor").key, self.roots.policy))
        attempt("record.tlog-proof", self.check_proof)
        attempt("manifest.json", self.check_manifest)
        attempt("prov.json", self.check_prov)
        self.check_others()
        attempt("verify.py", self.check_verifier)
        return {("VALID", "public-key.pem"), ("VALID", "pack-key.pem")} <= set(self.report.made)

    def need(self, what: str) -> Any:
        if what not in self.found:
            raise NotChecked("this needs what a check above did not find")
        return self.found[what]

    def view(self, name: str, limit: int = MAX_SMALL) -> memoryview:
        if name not in self.files:
            raise Incomplete(f"{name} is not here")
        if len(self.files[name]) > limit:
            raise Invalid(f"{name} has more than {limit} bytes")
        return self.files[name]

    def read(self, name: str) -> bytes:
        return bytes(self.view(name))

    def check_signature(self, name: str, key_file: str) -> str:
        key, signature = public_key(self.read(key_file)), name.replace(".json", "") + ".sig"
        if not ed25519_verifies(key, self.read(signature), self.view(name, MAX_BUNDLE)):
            raise Invalid(f"it is not the signature of {name} by {key_file}")
        return f"it is the signature of {name} by the key {key_id(key)}"

    def read_sums(self) -> str:
        """Read which files there must be, in the one order and spelling of `sha256sum`."""
        listed = re.findall(r"([0-9a-f]{64})  (.+)\n", str(self.read("SHA256SUMS"), "latin-1"))
        sums = {name: digest for digest, name in listed}
        lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
        if self.read("SHA256SUMS") != lines.encode("latin-1"):
            raise Invalid("it is not a list of digests and names in order")
        if set(sums) not in (SUMMED, SUMMED | STAMPED):
            raise Invalid("it names other files than a pack has")
        self.sums = sums
        return f"it names {len(sums)} files"

    def refuse(self, name: str) -> str:
        self.view(name, MAX_PACK)
        raise Invalid("its SHA-256 is not that of SHA256SUMS")

    def check_files(self) -> str:
        missing = sorted(OTHERS - set(self.files))
        extra = sorted(set(self.files) - OTHERS - set(self.sums)) if self.sums else []
        if extra:
            raise Invalid(f"no file here is called {', '.join(extra)}")
        if missing:
            raise Incomplete(f"{', '.join(missing)} is not here")
        return f"there are {len(self.files)}, each of them named"

    def check_key(self, name: str) -> str:
        key, bundle_key = public_key(self.read(name)), public_key(self.read("public-key.pem"))
        if self.roots.keys is None:
            raise NotChecked(f"only the pack says whose key {key_id(key)} is: give --key")
        if key in self.roots.keys:
            return f"{key_id(key)} was given by --key"
        if key == bundle_key:
            raise Invalid(f"{key_id(key)} is none of the keys given by --key")
        raise NotChecked(
            f"{key_id(key)} signed the pack, is not the bundle's key and was not given: if the "
            "service says that it is its key (rotated since), give it by another --key"
        )

    def read_bundle(self) -> str:
        data = self.view("bundle.json", MAX_BUNDLE)
        schema, record, _, _, _, named = members(
            read_canonical(data),
            "schema:str record:dict content:any steps:list nonce:str key_id:str",
        )
        if schema != "records/bundle/v1" or type(record.get("id")) is not str:
            raise Invalid("this is not a bundle of a kind that this program knows")
        if named != key_id(public_key(self.read("public-key.pem"))):
            raise Invalid("it names another key than public-key.pem")
        self.found.update({"record_id": record["id"], "digest": sha256(data).hex()})
        return f"it is the bundle of {record['id']}"

    def read_anchor(self) -> str:
        schema, release, _, vkey, proof, lines, timestamp = members(
            read_canonical(self.view("anchor.json")),
            "schema:str release:str anchored_by:str vkey:str log_proof:dict cosignatures:list"
            " timestamp:any",
        )
        if schema != "records/anchor/v1":
            raise Invalid("this is not an anchor of a kind that this program knows")
        if self.sums and (timestamp is not None) != ("checkpoint.tsr" in self.sums):
            raise Invalid("it does not say whether there is a timestamp")
        anchor = read_anchor(vkey, proof, lines)
        self.found.update({"anchor": anchor, "release": release, "timestamp": timestamp})
        return f"its checkpoint is signed by {anchor.key.name}"

    def check_inclusion(self) -> str:
        leaf = {"type": "record", "bundle_sha256": self.need("digest")}
        return check_inclusion(self.need("anchor"), leaf)

    def check_checkpoint(self) -> str:
        if self.read("checkpoint") != self.need("anchor").note:
            raise Invalid("it is not the checkpoint of anchor.json")
        return "it is that of anchor.json"

    def check_proof(self) -> str:
        """Check that the C2SP tlog-proof says the same as anchor.json, in its one spelling."""
        anchor = self.need("anchor")
        lines = ["c2sp.org/tlog-proof@v1", f"index {anchor.place}", *map(to_base64, anchor.path)]
        data = "".join(f"{line}\n" for line in [*lines, ""]).encode() + anchor.note
        for name, named, payload in dict.fromkeys(anchor.lines):
            data += f"\u2014 {name} {to_base64(named + payload)}\n".encode()
        if self.read("record.tlog-proof") != data:
            raise Invalid("it does not say exactly what anchor.json says")
        return "it says what anchor.json says"

    def check_manifest(self) -> str:
        """Check the manifest, which is not signed: all in it must follow from what is."""
        checkpoint = self.need("anchor").checkpoint
        sums = [hashlib.sha256(self.view(name)).hexdigest() for name in sorted(OTHERS)[:2]]
        digests = {**self.sums, **dict(zip(sorted(OTHERS), sums))}
        manifest = {
            "schema": "records/manifest/v1",
            "record_id": self.need("record_id"),
            "release": self.need("release"),
            "pack_key_id": key_id(public_key(self.read("pack-key.pem"))),
            "checkpoint": {
                "origin": checkpoint.origin,
                "size": checkpoint.size,
                "root": checkpoint.root.hex(),
            },
            "files": {
                name: {"sha256": digest, "size": len(self.view(name, MAX_PACK))}
                for name, digest in digests.items()
            },
        }
        if self.read("manifest.json") != canonical(manifest):
            raise Invalid("it says otherwise than what is signed")
        return "it says what is signed"

    def check_prov(self) -> str:
        """Check which bundle prov.json is about. It can be large, and is not parsed."""
        named = re.findall(rb'"rs:sha256":"([^"]*)"', self.view("prov.json", MAX_PACK))
        if named != [self.need("digest").encode()]:
            raise Invalid("it is not about this bundle")
        return "it is about this bundle"

    def check_others(self) -> None:
        """Check what others than the service say of the checkpoint."""
        anchor, roots, attempt = self.found.get("anchor"), self.roots, self.report.attempt
        if anchor and (anchor.lines or roots.policy):
            attempt(
                "cosignatures", check_cosignatures, anchor.lines, anchor.checkpoint, roots.policy
            )
        if "checkpoint.tsr" in self.sums:
            attempt("checkpoint.tsr", self.check_timestamp)
            attempt("tsa-chain.pem", check_authority, roots.authorities)
        elif roots.authorities is not None:
            attempt("checkpoint.tsr", no_timestamp)

    def check_timestamp(self) -> str:
        told, chain = self.need("timestamp"), self.read("tsa-chain.pem")
        found = check_timestamp(
            self.read("checkpoint.tsr"), self.read("checkpoint"), chain, self.roots.authorities
        )
        moment = found.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if told != {"gen_time": moment, "response": "checkpoint.tsr", "chain": "tsa-chain.pem"}:
            raise Invalid("anchor.json tells of another timestamp")
        return f"it is a timestamp of the checkpoint at {moment}"

    def check_verifier(self) -> str:
        """Hold the pack's verify.py to this program."""
        theirs = self.read("verify.py")
        if self.inside:
            raise NotChecked(
                "this program came with the pack and cannot vouch for itself: take it from where "
                f"you trust it; this one has the SHA-256 {sha256(theirs).hex()}"
            )
        if theirs != read_file(pathlib.Path(__file__), MAX_SMALL):
            raise NotChecked(
                "it is not this program but another release, or not ours: before running it, hold "
                f"its SHA-256 {sha256(theirs).hex()} to the one published for its release"
            )
        return "it is this program"


def check_authority(authorities: list[Certificate] | None) -> str:
    if authorities is None:
        raise NotChecked("only the pack says whose root the timestamp's chain ends with: --tsa-ca")
    return "the timestamp's chain was held to the roots given by --tsa-ca"


def no_timestamp() -> str:
    raise NotChecked("there is no timestamp to hold to --tsa-ca")


def check_pack(path: pathlib.Path | None, roots: Roots, *, strict: bool) -> int:
    """Check a ZIP, or the folder that this program stands in; return the exit code."""
    report = Report()
    files: Files = {}

    def read_folder_here() -> str:
        files.update(read_folder(pathlib.Path(__file__).resolve().parent))
        return f"{len(files)} plain files"

    def read_zip(data: memoryview) -> str:
        files.update(unzip(data))
        return f"{len(files)} files, and not a byte besides"

    if path is None:
        report.attempt("folder", read_folder_here)
    else:
        report.attempt("archive", read_zip, memoryview(read_file(path, MAX_PACK)))
    rooted = bool(files) and Pack(files, roots, report, inside=path is None).check()
    needed = ("bundle.sig", "SHA256SUMS.sig", "manifest.json", "inclusion")
    return report.ended(needed, own="THE PACK'S", rooted=rooted, strict=strict)


# --- The audit chain -----------------------------------------------------------------------------

ENTRY = (
    "seq:int prev_hash:hash hash:hash tenant_id:str action:str"
    " at:any actor:any target:any details:any request_id:any"
)


class Chain:
    """An exported audit chain, read line by line: of each entry only its hash is kept."""

    def __init__(self) -> None:
        self.hashes = bytearray(32)  # before the first entry stand zeros
        self.tenant = ""
        self.trailer: dict[str, Any] | None = None

    @property
    def last(self) -> int:
        return len(self.hashes) // 32 - 1

    def hash_at(self, seq: int) -> bytes:
        return bytes(self.hashes[32 * seq : 32 * seq + 32])

    def read(self, stream: BinaryIO) -> str:
        """Recompute every entry up to the trailer."""
        for line in iter(lambda: stream.readline(MAX_LINE), b""):
            if self.trailer is not None:
                raise Invalid("something follows the trailer")
            if not line.endswith(b"\n"):
                raise Incomplete(f"the line after entry {self.last} is cut off")
            try:
                self.take(line[:-1])
            except Verdict as error:
                raise Invalid(f"entry {self.last + 1}: {error}") from None
        if self.trailer is None:
            raise Incomplete("the export has no trailer, so its end may be missing")
        return f"{self.last}; the last has the hash {self.hash_at(self.last).hex()}"

    def take(self, line: bytes) -> None:
        """Check the next entry, or keep the trailer."""
        entry = read_canonical(line)
        if isinstance(entry, dict) and entry.get("type") == "trailer":
            self.trailer = entry
            return
        seq, before, stated, tenant, action = members(entry, ENTRY)[:5]
        del entry["hash"]
        if seq != self.last + 1 or before != self.hash_at(self.last):
            raise Invalid("it does not follow the entry before")
        if stated != sha256(canonical(entry)):
            raise Invalid("its hash is not that of what it says")
        if (tenant != self.tenant) if seq > 1 else (action != "tenant.create"):
            raise Invalid("it is of another chain, or not how one begins")
        self.hashes += stated
        self.tenant = tenant

    def check_trailer(self) -> str:
        _, entries, head, anchors = members(
            self.trailer, "type:str entries:int head:dict anchors:list"
        )
        seq, digest = members(head, "seq:int hash:hash")
        if not entries == seq == self.last > 0 or digest != self.hash_at(seq):
            raise Invalid("it is not about the entries before it")
        return f"it names {len(anchors)} anchors"

    def check_head(self, seq: int, digest: str) -> str:
        if seq > self.last:
            raise Incomplete("the chain ends before it")
        if self.hash_at(seq).hex() != digest:
            raise Invalid("the chain has another entry there")
        return "the chain leads through it"


class AuditAnchor:
    """The checks of one anchor: an entry of the chain whose hash is in the log."""

    def __init__(self, value: Any, chain: Chain, roots: Roots, report: Report) -> None:
        """Take it from the trailer; `chain` has been read."""
        self.value = value
        self.chain = chain
        self.roots = roots
        self.report = report
        self.anchor: Anchor | None = None
        self.of = b""

    def check(self, name: str) -> None:
        self.report.attempt(name, self.read)
        if self.anchor is None:
            return
        if self.anchor.lines or self.roots.policy:
            found = self.anchor.lines, self.anchor.checkpoint, self.roots.policy
            self.report.attempt(f"{name} cosignatures", check_cosignatures, *found)
        if self.value["timestamp"] is not None:
            self.report.attempt(f"{name} timestamp", self.check_timestamp, self.anchor.note)

    def read(self) -> str:
        """Check that the log has a leaf with the hash of this chain's entry."""
        seq, digest, at, of, proof, vkey, lines, response, chain = members(
            self.value,
            "seq:int hash:hash at:str chain:hash log_proof:dict vkey:str cosignatures:list"
            " timestamp:any tsa_chain:any",
        )
        if not 0 < seq <= self.chain.last or digest != self.chain.hash_at(seq):
            raise Invalid("it is of an entry that this chain does not have")
        if (response is None) != (chain is None):
            raise Invalid("it has a timestamp without a chain, or a chain without a timestamp")
        leaf = {"type": "audit-head", "seq": seq, "hash": digest.hex(), "at": at, "chain": of.hex()}
        anchor = read_anchor(vkey, proof, lines)
        found = check_inclusion(anchor, leaf)
        self.anchor, self.of = anchor, of
        return f"entry {seq}: {found}"

    def check_timestamp(self, note: bytes) -> str:
        told = {name: self.value[name] for name in ("timestamp", "tsa_chain")}
        response, chain = members(told, "timestamp:str tsa_chain:str")
        pem = chain.encode("utf-8", "replace")
        moment = check_timestamp(from_base64(response), note, pem, self.roots.authorities)
        return f"its checkpoint was there at {moment.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}"


def check_anchors(chain: Chain, roots: Roots, report: Report) -> bool:
    """Check all anchors; say whether the logs that have them are known from outside."""
    listed = chain.trailer["anchors"] if chain.trailer else []
    anchors = [AuditAnchor(value, chain, roots, report) for value in listed]
    for number, each in enumerate(anchors, 1):
        each.check(f"anchor {number}")
    keys = dict.fromkeys(each.anchor.key for each in anchors if each.anchor)
    for key in keys:
        report.attempt("the log's key", check_log_key, key, roots.policy)
    report.attempt("anchors", one_chain, {each.of for each in anchors if each.anchor})
    if any(each.anchor and each.value["timestamp"] is not None for each in anchors):
        report.attempt("timestamps' roots", check_authority, roots.authorities)
    return bool(keys) and ("NOT CHECKED", "the log's key") not in report.made


def one_chain(names: set[bytes]) -> str:
    if not names:
        raise NotChecked("there are none: a chain that was written anew as a whole has no flaw")
    if len(names) > 1:
        raise Invalid("they are of more than one chain")
    return "they are of one chain"


def check_audit(path: pathlib.Path, roots: Roots, heads: list[str], *, strict: bool) -> int:
    """Check an exported audit chain; return the exit code."""
    report, chain = Report(), Chain()
    kept = [re.fullmatch(r"([1-9][0-9]{0,15}):([0-9a-f]{64})", head) for head in heads]
    if not all(kept):
        raise Unreadable("--head is an entry's number, a colon and its hash in lower case")
    try:
        with path.open("rb") as stream:
            report.attempt("entries", chain.read, stream)
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {error}") from None
    if chain.trailer is not None:
        report.attempt("trailer", chain.check_trailer)
    for head in filter(None, kept):
        report.attempt(f"head {head[1]}", chain.check_head, int(head[1]), head[2])
    rooted = bool(heads)
    if ("VALID", "trailer") in report.made:
        rooted = check_anchors(chain, roots, report) or rooted
    return report.ended(("entries", "trailer"), own="THE EXPORT'S", rooted=rooted, strict=strict)


# --- The command line ----------------------------------------------------------------------------


def read_root(name: str, read: Callable[[bytes], Any]) -> Any:
    try:
        return read(read_file(pathlib.Path(name), MAX_SMALL))
    except Verdict as error:
        raise Unreadable(f"{name}: {error}") from None


def parse(arguments: list[str]) -> argparse.Namespace:
    audit = arguments[:1] == ["audit"]
    parser = argparse.ArgumentParser(
        prog="verify.py audit" if audit else "verify.py",
        description=f"Checks an {'exported audit chain' if audit else 'evidence pack'}.",
        allow_abbrev=False,
    )
    if audit:
        parser.add_argument("path", metavar="CHAIN.ndjson")
        parser.add_argument("--head", metavar="SEQ:HASH", action="append", default=[])
    else:
        parser.add_argument("path", metavar="PACK.zip", nargs="?")
        parser.add_argument("--key", metavar="PEM", action="append")
    parser.add_argument("--policy", metavar="FILE")
    parser.add_argument("--tsa-ca", metavar="PEM")
    parser.add_argument("--strict", action="store_true")
    return parser.parse_args(arguments[1:] if audit else arguments, argparse.Namespace(key=None))


def run(options: argparse.Namespace) -> int:
    """Do what the command line says; return the exit code."""
    keys = options.key and [read_root(name, public_key) for name in options.key]
    policy = options.policy and read_root(options.policy, Policy)
    authorities = options.tsa_ca and read_root(options.tsa_ca, certificates)
    roots = Roots(keys, policy, authorities)
    path = None if options.path is None else pathlib.Path(options.path)
    if path and hasattr(options, "head"):
        return check_audit(path, roots, options.head, strict=options.strict)
    return check_pack(path, roots, strict=options.strict)


def main(arguments: list[str] | None = None) -> int:
    """Run as a program; return the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        code = attempt_to(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # Nobody reads on, or nothing can be written. Python would complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def attempt_to(options: argparse.Namespace) -> int:
    try:
        return run(options)
    except BrokenPipeError:
        raise
    except (Unreadable, OSError) as error:
        show(f"COULD NOT BE READ: {error}")
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, ValueError) as error:
        # What nobody thought of must not look like a verdict, nor be a page of Python.
        show(f"COULD NOT BE READ: this program failed at it ({type(error).__name__})")
    return 2


if __name__ == "__main__":
    sys.exit(main())
