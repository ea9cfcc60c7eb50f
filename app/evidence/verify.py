"""Checks an evidence pack, an exported audit chain or period, without the service that made it.

    python3 -I -S verify.py [PACK] [--key FILE]… [--policy FILE] [--tsa-ca PEM] [--ca PEM]
                                   [--strict]
    python3 -I -S verify.py audit CHAIN.ndjson [--anchors FILE]… [--chain NAME] [--head SEQ:HASH]…
                                               [--policy FILE] [--tsa-ca PEM] [--strict]
    python3 -I -S verify.py export RECORDS.ndjson [--key FILE]… [--kept FILE] [--policy FILE]
                                                  [--tsa-ca PEM] [--strict]

PACK is a ZIP, or the folder that one was unzipped to; without it, that which this program stands
in. One file, Python 3.8 or newer, the standard library alone; it opens no connection and writes no
file. Take it from where you trust it: the copy inside a pack was put there by whoever made that.

--key     public keys (Ed25519, in PEM or as a JSON Web Key Set) that you have from elsewhere: those
          that signed the bundle and the pack. What a set says of a key's end counts: what was
          signed with it later is INVALID, and with a revoked key whatever others did not see before
--policy  a C2SP tlog-policy: the logs and witnesses that you trust, and how many of them you need
--tsa-ca  the root certificates (PEM) of the timestamping authorities that you trust
--ca      the root certificates (PEM) of the authorities that may say whose the bundle's key is
--chain   what the log calls the chain (64 digits of hex), as you kept it or have it from elsewhere
--head    an entry's number and hash that you kept; the chain must lead through it
--kept    SHA-256 of bundles that you kept, one a line (as `sha256sum` writes them): the records of
          a period must have them all
--anchors the evidence for the anchors that the export names: answers of GET /v1/audit/anchors
--strict  what was not checked, or only against the pack's own keys, ends with 2. Whether the chain
          was cut behind an anchor, nothing in an export says: hold the time of the newest anchor
          to that of your request, or keep a --head

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

All of it is checked in this file, by nothing but Python's hashes and integers. From top to bottom:
what is printed, JSON, Ed25519, signed notes and the Merkle tree, the ZIP, the pack, the audit
chain, the command line. Last, and for timestamps alone, come DER, RSA, ECDSA and X.509. They do
what `openssl ts -verify` does for you (README.txt of a pack has that line): the timestamp is of the
checkpoint's bytes, by a certificate for timestamping that leads to the root and was valid then. If
you run that instead, and find in the timestamp the time that anchor.json tells, skip them.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import json
import mmap
import os
import pathlib
import re
import struct
import sys
import zlib
from datetime import datetime, timezone
from typing import Any, BinaryIO, Callable, Dict, Iterable, NamedTuple, Tuple, Union

MAX_PACK, MAX_BUNDLE, MAX_SMALL = 4 << 30, 16 << 20, 1 << 20
MAX_SECONDS = 253402300799  # to the end of the year 9999
MAX_LINE = 16 << 20  # of an exported chain; a trailer of before has up to a hundred timestamps
Data = Union[bytes, memoryview]

# --- What is printed -----------------------------------------------------------------------------

class Verdict(Exception):
    """What became of one check, if it is not VALID; the text says why."""
    status = ""

class Invalid(Verdict):
    status = "INVALID"

class Incomplete(Verdict):
    status = "INCOMPLETE"

class NotChecked(Verdict):
    status = "NOT CHECKED"

def refuse(verdict: Verdict) -> None:
    raise verdict

class Unreadable(Exception):
    """There is nothing here that could be checked."""

def require(good: object, why: str) -> None:
    if not good:
        raise Invalid(why)

class Report:
    """The checks so far: their lines are printed as they are made."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.made: dict[str, list[str]] = {}  # the names of the checks, by what became of them

    def attempt(self, name: str, check: Callable[..., str | None], *arguments: Any) -> bool:
        """Make one check: a function that may say what it found, or raises a Verdict."""
        try:
            status, detail = "VALID", check(*arguments) or "it is as it must be"
        except Verdict as verdict:
            status, detail = verdict.status, str(verdict)
        except RecursionError:
            status, detail = "INVALID", "it is nested too deep"
        self.made.setdefault(status, []).append(name)
        show(f"{status:<12} {name}: {detail}")
        return status == "VALID"

    def tell(self, name: str, verdict: Verdict) -> None:
        """Say what was left out, and counts neither for the whole nor against it."""
        show(f"{verdict.status:<12} {name}: {verdict}")

    def ended(self, needed: list[str], own: str, besides: str) -> int:
        """Print the last line and return the exit code; the `needed` checks must be VALID.

        `own` says whose keys were believed, if none from outside; `besides` is added.
        """
        bad = [f"{status}: {', '.join(dict.fromkeys(self.made[status]))}"
               for status in ("INVALID", "INCOMPLETE") if status in self.made]
        if bad or not set(self.made.get("VALID", [])).issuperset(needed):
            show("; ".join(bad) or "INCOMPLETE: not all was there that must be checked")
            return 1
        unchecked = len(self.made.get("NOT CHECKED", []))
        counted = f", WITH {unchecked} NOT CHECKED" if unchecked else ""
        show(f"VALID{f' AGAINST {own} OWN KEYS' if own else counted}{besides}")
        return 2 if self.strict and (unchecked or own) else 0

def show(line: str) -> None:
    """Print a line; what a forger wrote into it must not command a terminal."""
    plain = line.encode("ascii", "backslashreplace").decode("ascii")
    print("".join(each if " " <= each <= "~" else "?" for each in plain)[:2000], flush=True)

# --- JSON, base64 and hashes, each of one spelling and one meaning -------------------------------

def read_json(data: Data) -> Any:
    """Read JSON of one meaning (RFC 7493): no name twice, no rounded number, no half character."""
    try:
        value = json.loads(str(data, "utf-8"), object_pairs_hook=_object, parse_int=_number,
                           parse_float=_number, parse_constant=_number)
        write_json(value)
    except ValueError as error:
        raise Invalid(f"this is not JSON of one meaning ({error})") from None
    return value

def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise ValueError("a name twice in one object")
    return found

def _number(literal: str) -> float:
    number, whole = float(literal), literal.lstrip("-").isdigit()
    if not (abs(number) < 1 << 53 or (not whole and 1e21 <= abs(number) < float("inf"))):
        raise ValueError("no such number")
    return int(literal) if whole else number

def write_json(value: Any) -> bytes:
    """Write JSON, in its canonical form (RFC 8785) where names are ASCII and numbers whole."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

def read_canonical(data: Data) -> Any:
    """Read JSON with ASCII names and whole numbers, which must be in its canonical form."""
    value = read_json(data)
    require(write_json(value) == data, "this is not canonical JSON")
    return value

# The members of what is read, as `members` takes them (docs/formats.md of the service tells more).
BUNDLE = "schema:str record:dict key_id:str content:any steps:list nonce:str"
PROOF = "leaf_index:int leaf_data:str leaf_hash:hash tree_size:int inclusion:list checkpoint:str"
ANCHOR = ("schema:str release:str anchored_by:str vkey:str log_proof:dict cosignatures:list "
          "timestamp:any")
AGENT = "id:str name:str"  # in the second form of anchor.json
STAMP = "gen_time:str response:str chain:str"
FINDINGS = "schema:str record_id:str total:int data:list"
FINDING = ("agent_id:str created_at:str data:any detail:any id:str principal:str record_id:str "
           "rule:str session_id:str severity:str source:str title:str")
PLACE = "index:int size:int path:list"
STATEMENT = ("schema:str session:dict records:int root:hash first_at:any last_at:any "
             "findings:dict nonce:str key_id:str")
SESSION = "id:str agent:dict principal:str opened_at:str completed_at:str outcome:str"
ENTRY = ("seq:int prev_hash:hash hash:hash tenant_id:str action:str at:any actor:any target:any "
         "details:any request_id:any")  # of before; later ones have these as well:
OUTCOME = " outcome:any origin:any"
HEAD = "seq:int hash:hash"
ENTRY_ANCHOR = ("seq:int hash:hash at:str chain:hash vkey:any log_proof:any cosignatures:list "
                "timestamp:any tsa_chain:any")
TRAILER = "type:str entries:int head:dict anchors:list anchors_total:int"  # of a whole chain
RANGE = " after:dict"  # the head that its entries follow
KINDS = {"str": str, "int": int, "list": list, "dict": dict, "hash": str, "any": object}

def members(value: Any, spec: str) -> list[Any]:
    """Return the members of an object, which must be exactly these, of these types.

    `spec` is like "seq:int at:str". `int` is a number from 0 on, `hash` is in hex of lower case,
    and its bytes are returned.
    """
    kinds = dict(each.split(":") for each in spec.split())
    require(type(value) is dict and set(value) == set(kinds), f"it is not exactly: {spec}")
    found = []
    for name, kind in kinds.items():
        each: Any = value[name]
        # The type itself: True is an int as well.
        good: Any = KINDS[kind] in (object, type(each)) and not (kind == "int" and each < 0)
        if kind == "hash":
            good = good and re.fullmatch("[0-9a-f]{64}", each)
        require(good, f"{name} is not what it must be")
        found.append(bytes.fromhex(each) if kind == "hash" else each)
    return found

def matched(pattern: str, text: str, why: str) -> re.Match[str]:
    """Return the match of a pattern that the whole text must have."""
    found = re.fullmatch(pattern, text)
    if found is None:
        raise Invalid(why)
    return found

def instant(text: Any) -> str:
    """Return a time in UTC, in the one spelling that the service has; such texts sort by time."""
    form = r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}\.[0-9]{6}Z"
    return matched(form, str(text), f"{str(text)[:40]!r} is not a time in UTC with microseconds")[0]

def cut(text: str) -> str:
    """Return a time in that spelling: its second's digits are cut off, or filled up with zeros."""
    second, _, digits = text[:-1].partition(".")
    return f"{second}.{digits[:6]:0<6}Z"

def written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

def from_base64(text: str) -> bytes:
    whole = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
    require(re.fullmatch(whole, text), "this is not base64")
    data = base64.b64decode(text)
    require(to_base64(data) == text, "this base64 has another, canonical spelling")
    return data

def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()

def sha256(data: Data) -> bytes:
    return hashlib.sha256(data).digest()

# --- Ed25519 (RFC 8032, section 5.1): -x² + y² = 1 + D x² y² modulo P, of the order L -------------

P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = Tuple[int, int, int, int]  # x = X/Z, y = Y/Z, x * y = T/Z

def combined(add: Callable[[Any, Any], Any], neutral: Any, a: int, p: Any, b: int, q: Any) -> Any:
    """Return a * p + b * q, on whichever curve `add` is the addition of."""
    table, found = (neutral, p, q, add(p, q)), neutral
    for bit in range(max(a.bit_length(), b.bit_length()) - 1, -1, -1):
        found = add(found, found)
        found = add(found, table[(a >> bit & 1) + 2 * (b >> bit & 1)])
    return found

def _sum(p: Point, q: Point) -> Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P

def _point(data: bytes) -> Point | None:
    """Decode a point (5.1.3); None if these bytes are none."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & ((1 << 255) - 1)
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if len(data) != 32 or y >= P or x * x % P != square or (x == 0 and sign):
        return None
    x = x if x & 1 == sign else P - x
    return x, y, 1, x * y % P

def _encoded(p: Point) -> bytes:
    x, y = (each * pow(p[2], -1, P) % P for each in p[:2])
    return (y | (x & 1) << 255).to_bytes(32, "little")

NEUTRAL: Point = (0, 1, 1, 0)
BASE = _point(bytes([0x58]) + bytes([0x66]) * 31) or NEUTRAL

@functools.lru_cache(64)
def _multiples(p: Point) -> list[list[Point]]:
    """Return 0 to 15 times 16^n * p for each n up to 63: one key signs thousands of records."""
    rows = []
    for _ in range(64):
        row = [NEUTRAL]
        for _ in range(15):
            row.append(_sum(row[-1], p))
        rows.append(row)
        p = _sum(row[-1], p)
    return rows

def _times(n: int, p: Point) -> Point:
    found = NEUTRAL
    for row in _multiples(p):
        found, n = _sum(found, row[n & 15]), n >> 4
    return found

@functools.lru_cache(64)
def _verifying(public: bytes) -> Point | None:
    """Return -A, None unless A is a point of the order L."""
    a = _point(public)
    if a is None or a == NEUTRAL:
        return None
    minus_a = P - a[0], a[1], 1, P - a[3]
    return minus_a if _encoded(_times(L, minus_a)) == _encoded(NEUTRAL) else None

def ed25519_verifies(public: bytes, signature: bytes, message: Data) -> bool:
    """Say whether R = [S]B - [k]A (5.1.7, without the cofactor, as OpenSSL does).

    A must be of the order L: with any other point more than one message has the same signature.
    """
    minus_a = _verifying(public)
    s = int.from_bytes(signature[32:], "little")
    if minus_a is None or len(signature) != 64 or s >= L:
        return False
    digest = hashlib.sha512(signature[:32] + public + message).digest()
    k = int.from_bytes(digest, "little") % L
    return _encoded(_sum(_times(s, BASE), _times(k, minus_a))) == signature[:32]

ED25519_SPKI = bytes.fromhex("302a300506032b6570032100")

class End(NamedTuple):
    """When a key ceased to sign, as the key set says; None for what did not happen."""
    retired: str | None = None
    revoked: str | None = None
    reason: str = ""

def public_keys(data: bytes) -> list[tuple[bytes, End]]:
    """Return the keys in PEM, or in a JSON Web Key Set (RFC 7517, RFC 8037), but for a log's."""
    if data.strip()[:1] != b"{":
        return [(public_key(data), End())]
    keys = read_json(data).get("keys")
    found = []
    for each in keys if type(keys) is list else []:
        if (type(each) is dict and [each.get("kty"), each.get("crv")] == ["OKP", "Ed25519"]
                and each.get("purpose") != "log"):
            key = from_base64(f"{each.get('x')}=".replace("-", "+").replace("_", "/"))
            told = [each.get(name) for name in ("retired_at", "revoked_at")]
            retired, revoked = [None if when is None else instant(when) for when in told]
            found.append((key, End(retired, revoked, str(each.get("revocation_reason") or ""))))
    require({len(key) for key, _ in found} == {32}, "this has no Ed25519 key that signs bundles")
    return found

def public_key(pem: bytes) -> bytes:
    """Return the 32 bytes of the one Ed25519 public key that a PEM file is (RFC 8410)."""
    why = "this is not one Ed25519 public key in PEM"
    form = r"(?a)\s*-----BEGIN PUBLIC KEY-----([\w+/=\s]*)-----END PUBLIC KEY-----\s*"
    spki = from_base64("".join(matched(form, str(pem, "latin-1"), why)[1].split()))
    require(spki[:12] == ED25519_SPKI and len(spki) == 44, why)
    return spki[12:]

def key_id(public: bytes) -> str:
    """Return how the service calls a key: the start of the SHA-256 of its DER."""
    return sha256(ED25519_SPKI + public).hex()[:16]

# --- Signed notes, checkpoints, cosignatures, policies (C2SP) and the Merkle tree (RFC 9162) ------

ED25519, COSIGNATURE = 1, 4  # the types of keys that are checked here
NAME, BASE64 = r"([^+\s\x00-\x1f]+)", "([A-Za-z0-9+/=]+)"
Line = Tuple[str, bytes, bytes]  # a signature: who made it, the hash of the key, the rest

class Key(NamedTuple):
    """A key with the name that it signs notes under, and the hash of both."""
    name: str
    hash: bytes
    algorithm: int
    public: bytes

class Anchor(NamedTuple):
    """A leaf's place in a log, and who vouches for the log's checkpoint."""
    key: Key
    place: int
    leaf: bytes
    path: list[bytes]
    note: bytes  # the checkpoint, signed
    text: bytes  # what of it is signed
    size: int
    root: bytes
    lines: list[Line]

def read_key(text: str) -> Key:
    """Read a verifier key: <name>+<hash>+<base64 of algorithm and public key>."""
    found = matched(rf"{NAME}\+([0-9a-f]{{8}})\+{BASE64}", text, "this is not a verifier key")
    data = from_base64(found[3])
    key = Key(found[1], bytes.fromhex(found[2]), data[0], data[1:])
    named = sha256(found[1].encode("utf-8", "replace") + b"\n" + data)[:4] == key.hash
    known = key.algorithm in (ED25519, COSIGNATURE)
    good = len(key.public) == 32 and named if known else key.public
    require(good, "the hash in this verifier key is not that of its name and key")
    return key

def read_line(line: str) -> Line:
    """Read a signature line without its newline."""
    found = matched(f"\u2014 {NAME} {BASE64}", line, "this is not a signature line")
    data = from_base64(found[2])
    require(len(data) > 4, "this is not a signature line")
    return found[1], data[:4], data[4:]

def read_checkpoint(vkey: str, note: str, cosignatures: list[Any]) -> Anchor:
    """Read a checkpoint with its log's key and cosignatures, and check the log's signature."""
    key = read_key(vkey)
    form = rf"(([^\n]+)\n(0|[1-9][0-9]{{0,18}})\n{BASE64}\n)\n([^\n]+)\n"
    found = matched(form, note, "this is not a checkpoint with one signature")
    text, size, root = found[1].encode(), int(found[3]), from_base64(found[4])
    require(len(root) == 32 and size < 1 << 63, "the checkpoint's size or root is none")
    *signer, signature = read_line(found[5])
    own = key.algorithm == ED25519 and signer == [key.name, key.hash] and found[2] == key.name
    require(own, "the checkpoint is not signed by the log's key, or of another log")
    require(ed25519_verifies(key.public, signature, text), "the log's signature does not hold")
    require(len(cosignatures) < 100, "there are too many cosignatures")
    lines = [read_line(members({"line": each}, "line:str")[0]) for each in cosignatures]
    require(key[:2] not in [line[:2] for line in lines], "the log's signature is no cosignature")
    return Anchor(key, 0, b"", [], note.encode(), text, size, root, lines)

def read_anchor(vkey: str, proof: Any, cosignatures: list[Any]) -> Anchor:
    """Read a log-proof with its log's key and cosignatures, and check the log's signature."""
    index, data, leaf_hash, stated_size, path, note = members(proof, PROOF)
    leaf, anchor = from_base64(data), read_checkpoint(vkey, note, cosignatures)
    require(stated_size == anchor.size, "the proof is for another size than the checkpoint")
    require(leaf_hash == sha256(b"\x00" + leaf), "leaf_hash is not that of leaf_data")
    require(len(path) < 64, "the path is too long")
    hashes = [members({"hash": each}, "hash:hash")[0] for each in path]
    return anchor._replace(place=index, leaf=leaf, path=hashes)

def check_inclusion(anchor: Anchor, leaf: dict[str, Any]) -> str:
    require(anchor.leaf == write_json(leaf), "the leaf is another one's")
    good = included(anchor.leaf, anchor.place, anchor.size, anchor.path, anchor.root)
    require(good, "the path does not lead from the leaf to the checkpoint's root")
    return f"it is leaf {anchor.place} of {anchor.size} in {anchor.key.name}"

def included(leaf: bytes, index: int, size: int, path: list[bytes], root: bytes) -> bool:
    """Say whether the path leads from leaf `index` to the root (RFC 9162, section 2.1.3.2)."""
    found, node, last = sha256(b"\x00" + leaf), index, size - 1
    good = 0 <= index < size
    for sibling in path:
        good = good and last > 0
        if node % 2 or node == last:
            found = sha256(b"\x01" + sibling + found)
            while node and node % 2 == 0:
                node, last = node // 2, last // 2
        else:
            found = sha256(b"\x01" + found + sibling)
        node, last = node // 2, last // 2
    return good and last == 0 and found == root

class Tree:
    """A Merkle tree by the roots of its complete subtrees, with their levels, largest first."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self.size, self.nodes = 0, [(0, b"")][:0]
        for each in leaves:
            self.grow(each)

    def grow(self, node: bytes, level: int = 0) -> None:
        self.size += 1 << level
        while self.nodes and self.nodes[-1][0] == level:
            node, level = sha256(b"\x01" + self.nodes.pop()[1] + node), level + 1
        self.nodes.append((level, node))

    def fold(self, end: int, nodes: list[Any]) -> None:
        """Grow up to a size by the largest subtrees that fit there."""
        left = [members({"hash": each}, "hash:hash")[0] for each in reversed(nodes)]
        while left and self.size < end:
            level = (end - self.size).bit_length() - 1
            if self.size:
                level = min(level, (self.size & -self.size).bit_length() - 1)
            self.grow(left.pop(), level)
        require(not left and self.size == end, "it has too few or too many hashes")

    def root(self) -> bytes:
        found = self.nodes[-1][1] if self.nodes else sha256(b"")
        for _, node in self.nodes[-2::-1]:
            found = sha256(b"\x01" + node + found)
        return found

class Policy:
    """A C2SP tlog-policy: logs, witnesses, and which of these make a quorum."""

    def __init__(self, data: bytes) -> None:
        self.logs: list[Key] = []
        self.keys: list[Key] = []  # that of the line which is read
        self.unchecked: dict[int, str] = {}  # the lines with keys of other types
        self.witnesses: dict[str, Key] = {}
        self.groups: dict[str, tuple[int, tuple[str, ...]]] = {"none": (0, ())}
        self.quorum = ""
        plain = data[-1:] == b"\n" and not re.search(rb"[^\t\n\x20-\x7e\x80-\xff]", data)
        require(plain, "a policy is lines of text, each with a newline at its end")
        for number, line in enumerate(str(data, "utf-8", "surrogateescape").split("\n"), 1):
            items = re.findall(r"[^ \t]+", line)
            good = not items or items[0].startswith("#") or self._take(*items)
            key = self.keys.pop() if self.keys else None
            if key and key.algorithm not in (ED25519, COSIGNATURE):
                self.unchecked[number] = (f"a {items[0]} with a key of the type "
                                          f"{key.algorithm:02x}, which is not checked here")
            require(good, f"line {number} is no log, witness, group or quorum line that fits here")
        require(self.quorum, "a policy has a quorum line")

    def _take(self, kind: str, *items: str) -> bool:
        """Take a line; say whether it has the items, keys and names that such a line may have."""
        names = {*self.witnesses, *self.groups}
        if kind == "log" and len(items) in (1, 2):
            self.keys = [read_key(items[0])]
            self.logs += self.keys
            known = [key.public for key in self.logs]
            return self.logs[-1].algorithm != COSIGNATURE and len(set(known)) == len(known)
        if kind == "witness" and len(items) in (2, 3):
            known = [key.public for key in self.witnesses.values()]
            key = self.witnesses[items[0]] = read_key(items[1])
            self.keys = [key]
            new = items[0] not in names and key.public not in known
            return new and key.algorithm != ED25519
        if kind == "group" and len(items) > 2:
            return items[0] not in names and self._take_group(items[0], items[1], items[2:])
        unset, self.quorum = not self.quorum, "".join(items)
        return kind == "quorum" and unset and len(items) == 1 and items[0] in names

    def _take_group(self, name: str, threshold: str, listed: tuple[str, ...]) -> bool:
        grouped = {each for _, group in self.groups.values() for each in group}
        free = {*self.witnesses, *self.groups} - grouped - {"none"}
        threshold = {"any": "1", "all": str(len(listed))}.get(threshold, threshold)
        needed = int(threshold) if re.fullmatch("[1-9][0-9]{0,5}", threshold) else 0
        self.groups[name] = (needed, listed)
        return 0 < needed <= len(set(listed)) == len(listed) and free.issuperset(listed)

    def is_met_by(self, names: Iterable[str]) -> bool:
        """Say whether the witnesses with these names are a quorum."""
        met = set(names)
        for name, (needed, group) in self.groups.items():  # in the order of their lines
            if len(met.intersection(group)) >= needed:
                met.add(name)
        return self.quorum in met

def tell_unchecked(options: argparse.Namespace, report: Report) -> None:
    """Tell of the lines of the policy that could not count, whatever they say."""
    for number, kind in options.policy.unchecked.items() if options.policy else ():
        report.tell(f"policy line {number}", NotChecked(kind))

def check_log_key(key: Key, policy: Policy | None) -> str:
    """Hold the key of a log to the policy."""
    if policy is None or not policy.logs:
        raise NotChecked(f"nobody else says that {key.name} has this key: give --policy")
    others = [each.name for each in policy.logs if each.algorithm != ED25519]
    if key not in policy.logs and key.name in others:
        raise NotChecked(f"the policy has a key of {key.name} that this program does not check")
    require(key in policy.logs, f"{key.name}, with this key, is no log that the policy lists")
    return f"the policy lists {key.name}"

def check_cosignatures(anchor: Anchor, policy: Policy | None, found: Any, older: Any = ()) -> str:
    """Hold the cosignatures of a checkpoint to the policy; add to `found` when and by whom.

    Without a quorum it is INCOMPLETE, or awaits one if `older` are anchors that have theirs.
    """
    if policy is None:
        raise NotChecked(f"{len(anchor.lines)}, by whom is not said: give --policy")
    witnesses = {key[:2]: (name, key) for name, key in policy.witnesses.items()
                 if key.algorithm == COSIGNATURE}
    ours, good = [line for line in anchor.lines if line[:2] in witnesses], set()
    for line in ours:
        name, key = witnesses[line[:2]]
        seconds, signature = int.from_bytes(line[2][:8], "big"), line[2][8:]
        text = b"cosignature/v1\ntime %d\n" % seconds + anchor.text
        holds = seconds < 1 << 63 and ed25519_verifies(key.public, signature, text)
        require(holds, f"the cosignature of {key.name} does not hold")
        made = datetime.fromtimestamp(min(seconds, MAX_SECONDS), timezone.utc)
        found.append((written(made), name))
        good.add(name)
    said = (f"{len(good)} by witnesses of the policy, {len(anchor.lines) - len(ours)} others not "
            f"checked; the policy's quorum {policy.quorum} is")
    if not policy.is_met_by(good):
        raise NotChecked(f"{said} awaited, not met yet") if older else Incomplete(f"{said} not met")
    return f"{said} met"

# --- The ZIP: nothing but the bytes that its files make, so nothing hides in it -------------------

LOCAL, CENTRAL, END = map(struct.Struct, ("<4s5H3I2H", "<4s6H3I5H2I", "<4s4H2IH"))
MADE = (0x314, 20, 0, 0, 0, 0x41, 0, 0, 0, 0, 0o100644 << 16)  # all but names, sizes and places
FIRST_MADE = (*MADE[:5], 0x21, *MADE[6:])  # dated a month before, as packs were at first
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LEFT_BEHIND = re.compile(  # by the Finder and the Explorer, in folders that they showed
    r"(?is)\.DS_Store|\._.*|__MACOSX|\.localized|(eh)?thumbs\.db|desktop\.ini")
Files = Dict[str, memoryview]

def unzip(path: pathlib.Path) -> Files:
    """Take a ZIP apart that must be as packs are: stored, sorted, of one date, nothing between.

    Of its directory only names and lengths are read: the rest is made anew, and must be the same.
    """
    files: Files = {}
    data, offset = map_file(path), 0
    if len(data) < END.size or bytes(data[:2]) != b"PK":
        raise Unreadable("this is not a ZIP")
    count, _, start = END.unpack(data[-END.size :])[4:7]
    at, made = start, MADE
    while len(files) < min(count, 64):
        require(at + CENTRAL.size <= len(data), "the ZIP's directory is cut off")
        told = CENTRAL.unpack(data[at : at + CENTRAL.size])
        made = FIRST_MADE if not files and told[6] == FIRST_MADE[5] else made
        require(told[1:7] + told[11:16] == made, "the ZIP was made or changed by another program, "
                "and may hide something: unzip it, and check the folder (verify.py FOLDER)")
        length, name_length = told[9:11]
        raw = bytes(data[at + CENTRAL.size : at + CENTRAL.size + name_length])
        name, begin = raw.decode("latin-1"), offset + LOCAL.size + name_length
        good = FILE_NAME.fullmatch(name) and name > max(files, default="")
        require(good, f"{name[:64]!r} is no name of a file in a pack, or not in its order")
        files[name] = content = data[begin : begin + length]
        sizes = (zlib.crc32(content), length, length, name_length)
        head = LOCAL.pack(b"PK\3\4", *made[1:6], *sizes, 0) + raw
        entry = CENTRAL.pack(b"PK\1\2", *made[:6], *sizes, *made[6:], offset) + raw
        same = data[offset:begin] == head and data[at : at + len(entry)] == entry
        require(same, f"{name}: its bytes or what the ZIP says of it are not as they must be")
        offset, at = begin + length, at + len(entry)
    end = END.pack(b"PK\5\6", 0, 0, len(files), len(files), at - start, start, 0)
    require(offset == start and data[at:] == end, "something else is in the ZIP than its files")
    return files

def read_folder(folder: pathlib.Path) -> tuple[Files, list[str]]:
    """Read the files of an unzipped pack; return the names of what else is there as well."""
    files: Files = {}
    others = []
    for path in sorted(folder.iterdir()):
        named = FILE_NAME.fullmatch(path.name) and not LEFT_BEHIND.fullmatch(path.name)
        if named and len(files) < 64 and path.is_file() and not path.is_symlink():
            files[path.name] = map_file(path)
        else:
            others.append(path.name)
    return files, others

def map_file(path: pathlib.Path) -> memoryview:
    """Return a file's bytes, which are read as they are needed: a pack may have 4 GiB."""
    if path.stat().st_size > MAX_PACK:
        raise Unreadable(f"{path} has more than {MAX_PACK} bytes")
    if not path.is_file():  # a pipe
        return memoryview(read_file(path, 512 << 20))
    with path.open("rb") as stream:
        try:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:  # it is empty
            return memoryview(b"")

def read_file(path: pathlib.Path, limit: int) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise Unreadable(f"{path} has more than {limit} bytes")
    return data

# --- The pack ------------------------------------------------------------------------------------

OTHERS = {"SHA256SUMS", "SHA256SUMS.sig", "manifest.json"}

class Check(NamedTuple):
    """One check of a pack, and by which function it is made.

    With a group it is made only of packs that have this group; with none, of all of them. Files of
    one group are in a pack together, or none of them is.
    """
    name: str  # of the file, or of what several files say together
    function: Callable[[], str | None]
    group: str = ""
    is_file: bool = True

class Pack:
    """The checks of a pack, of whatever kind. What one of them finds, later ones use."""
    marker = ""  # the file by which one knows this kind
    needed: tuple[str, ...] = ()  # the checks without which nothing is VALID

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self.here = pathlib.Path(__file__).resolve().parent
        self.path, self.options, self.report = options.path or self.here, options, report
        self.files: Files = {}
        self.sums: dict[str, str] = {}
        self.groups = {""}  # which groups of checks there are
        self.found: dict[str, Any] = {}

    def table(self) -> list[Check]:
        """Return every check of this kind of pack, in order; all files that it may have are here.

        The frame checks SHA256SUMS, its signature and the digests in it before all of these.
        """
        return []

    def check(self) -> int:
        """Make every check; return the exit code."""
        attempt, table = self.report.attempt, self.table()
        tell_unchecked(self.options, self.report)
        attempt("SHA256SUMS.sig", self.check_signature, "SHA256SUMS", "pack-key.pem")
        attempt("SHA256SUMS", self.read_sums, [each for each in table if each.is_file])
        for name, digest in sorted(self.sums.items()):
            if name not in self.files:
                attempt(name, refuse, Incomplete(f"{name} is not here"))
            elif sha256(self.files[name]).hex() != digest:
                attempt(name, refuse, Invalid("its SHA-256 is not that of SHA256SUMS"))
        for each in table:
            if each.group in self.groups:
                attempt(each.name, each.function)
        return self.ended()

    def ended(self) -> int:
        """Print what all of it comes to; return the exit code."""
        own = "" if self.is_valid("pack-key.pem") else "THE PACK'S"
        return self.report.ended([*self.needed], own, "")

    def is_valid(self, name: str) -> bool:
        """Say whether a check was made and is VALID."""
        return name in self.report.made.get("VALID", [])

    def open(self) -> str:
        if not self.path.is_dir():
            self.files = unzip(self.path)
            return f"{len(self.files)} files, and nothing besides"
        self.files, others = read_folder(self.path)
        strange = [repr(each[:64]) for each in others if not LEFT_BEHIND.fullmatch(each)]
        require(not strange, f"{', '.join(strange[:20])}: a pack has nothing like that")
        besides = f"beside the pack, and not read: {', '.join(others)}" if others else ""
        return f"{len(self.files)} files, and {besides or 'nothing besides'}"

    def need(self, what: str) -> Any:
        if what not in self.found:
            raise NotChecked("this needs what a check above did not find")
        return self.found[what]

    def view(self, name: str, limit: int = MAX_SMALL) -> memoryview:
        if name not in self.files:
            raise Incomplete(f"{name} is not here")
        require(len(self.files[name]) <= limit, f"{name} has more than {limit} bytes")
        return self.files[name]

    def read(self, name: str) -> bytes:
        return bytes(self.view(name))

    def check_same(self, name: str, expected: Callable[[], bytes]) -> None:
        """Check a file that says nothing of its own."""
        require(expected() == self.read(name), "it is not exactly what follows from what is signed")

    def check_signature(self, name: str, key_file: str) -> str:
        key, signature = public_key(self.read(key_file)), name.replace(".json", "") + ".sig"
        holds = ed25519_verifies(key, self.read(signature), self.view(name, MAX_BUNDLE))
        require(holds, f"it is not the signature of {name} by {key_file}")
        return f"it is the signature of {name} by the key {key_id(key)}"

    def read_sums(self, table: list[Check]) -> None:
        """Read which files there must be, in the one order and spelling of `sha256sum`."""
        text = str(self.read("SHA256SUMS"), "latin-1")
        sums = {name: digest for digest, name in re.findall("([0-9a-f]{64})  (.+)\n", text)}
        lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
        require(text == lines, "it is not a list of digests and names in order")
        held = {each.name: each.group for each in table if each.name not in OTHERS}
        groups = {held.get(name) for name in sums} | {""}
        whole = {name for name, group in held.items() if group in groups}
        require(set(sums) == whole, "it names other files than a pack has")
        self.sums, self.groups = sums, self.groups | {*held.values()} & groups
        extra = sorted(set(self.files) - OTHERS - set(sums))
        require(not extra, f"it has no file that is called {', '.join(extra)}")

    def check_key(self, name: str) -> str:
        """Hold a key of the pack to those from outside."""
        key = public_key(self.read(name))
        if self.options.key is None:
            raise NotChecked(f"only the pack says whose key {key_id(key)} is: give --key")
        if key in self.options.key:
            _, revoked, reason = self.options.key[key]
            if revoked and name == "pack-key.pem":
                raise NotChecked(f"{key_id(key)} was revoked at {revoked} ({reason}): have the "
                                 "service make the pack anew")
            if self.end(name) != End():
                self.groups.add(f"end of {name}")
            return f"{key_id(key)} was given by --key"
        alone = name == "pack-key.pem" and key != public_key(self.read("public-key.pem"))
        require(alone, f"{key_id(key)} is none of the keys given by --key")
        raise NotChecked(f"{key_id(key)} signed the pack alone: if the service has it, give it too")

    def end(self, name: str) -> End:
        """Return the end of a key that --key gave."""
        return End(*self.options.key[public_key(self.read(name))])

    def check_told(self, what: str) -> str:
        """Say whose word it is that follows from nothing else that is signed."""
        if not self.is_valid("pack-key.pem"):
            raise NotChecked(f"{what} the word of whoever packed, and nobody says who that is")
        return f"{what} the word of whoever packed, with a key that --key gave"

    def check_pack_time(self) -> str:
        """Check that nothing in the pack is later than the end of the key that signed it."""
        retired, newest = self.end("pack-key.pem").retired or "", max(self.times())
        why = f"its key was retired at {retired}, and the newest in it is of {newest}"
        require(newest <= retired, why)
        return why

    def times(self) -> list[str]:
        """Return the times in the pack, none of which may be later than the end of its key."""
        raise NotImplementedError

    def check_verifier(self) -> None:
        """Hold the pack's verify.py to this program."""
        theirs = self.read("verify.py")
        its = f"its SHA-256 is {sha256(theirs).hex()}"
        if self.path.resolve() == self.here:
            raise NotChecked(f"this program came with the pack and cannot vouch for itself; {its}")
        if theirs != read_file(pathlib.Path(__file__), MAX_SMALL):
            raise NotChecked(f"it is not this program, but another release or not ours; {its}")

def read_bundle(data: Data) -> tuple[dict[str, Any], tuple[Any, Any, Any], dict[str, Any], str]:
    """Return a bundle's record, whose it is (session, agent, principal), its agent, and its key."""
    bundle = read_json(data)
    decided = " approvals:list" * (type(bundle) is dict and "approvals" in bundle)
    schema, record, named, *_ = members(bundle, BUNDLE + decided)
    agent = record.get("agent", {"id": record.get("agent_id")})
    session = record.get("session", {"id": record.get("session_id")})
    known = re.fullmatch("records/bundle/v[12]", schema) and type(record.get("id")) is str
    require(known and type(agent) is dict and type(session) is dict,
            "this is not a bundle that this program knows")
    return record, (session.get("id"), agent.get("id"), record.get("principal")), agent, named

class Statement(NamedTuple):
    """What the statement of a sealed session says."""
    whose: tuple[str, str, str]  # the session's id, its agent's, and the principal
    agent: dict[str, Any]
    ended: str
    records: int
    root: bytes
    first: str
    last: str
    findings: dict[str, int]
    key_id: str

    @property
    def words(self) -> str:
        return f"{self.whose[0]} held {self.records} records when it was completed at {self.ended}"

def read_statement(data: Data) -> Statement:
    schema, session, records, root, first, last, findings, _, named = members(
        read_canonical(data), STATEMENT)
    require(schema == "records/session/v1", "this is no statement that this program knows")
    external = " external_id:str" * ("external_id" in session)
    called, agent, principal, opened, ended, _, *_ = members(session, SESSION + external)
    require(type(agent.get("id")) is str, "it names no agent")
    counts = [members({"count": each}, "count:int")[0] for each in findings.values()]
    begins, ends = (instant(each) for each in (first, last)) if records else ("", "")
    good = records or (root == sha256(b"") and first is last is None)
    require(good and begins <= ends and instant(opened) <= instant(ended),
            "what it says does not fit together")
    return Statement((called, agent["id"], principal), agent, ended, records, root, begins,
                     ends, dict(zip(findings, counts)), named)

class RecordPack(Pack):
    """The pack of one record."""
    marker = "bundle.json"
    about = "record_id"
    needed: tuple[str, ...] = ("bundle.sig", "SHA256SUMS.sig", "manifest.json", "inclusion")

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        super().__init__(options, report)
        self.cosigned: list[tuple[str, str]] = []  # when each witness of the policy did

    def table(self) -> list[Check]:
        same, policy, tsa_ca = self.check_same, self.options.policy, self.options.tsa_ca
        return [
            Check("bundle.json", self.read_bundle),
            Check("bundle.sig", lambda: self.check_signature("bundle.json", "public-key.pem")),
            Check("public-key.pem", lambda: self.check_key("public-key.pem")),
            Check("pack-key.pem", lambda: self.check_key("pack-key.pem")),
            Check("anchor.json", self.read_anchor),
            Check("inclusion", self.check_inclusion, is_file=False),
            Check("checkpoint", lambda: same("checkpoint", lambda: self.need("anchor").note)),
            Check("the log's key", lambda: check_log_key(self.need("anchor").key, policy),
                  is_file=False),
            Check("record.tlog-proof", lambda: same("record.tlog-proof", self.expected_proof)),
            Check("manifest.json", lambda: same("manifest.json", self.expected_manifest)),
            Check("prov.json", self.check_prov),
            Check("findings.json", self.check_findings, "findings"),
            Check("session-statement.json", self.read_statement, "session"),
            Check("session-statement.sig", lambda: self.check_signature(
                "session-statement.json", self.statement_key()), "session"),
            Check("session-key.pem", lambda: self.check_key("session-key.pem"), "session key"),
            Check("session-proof.json", self.check_place, "session"),
            Check("time of session-statement.sig", self.check_statement_time, "end of its key",
                  is_file=False),
            Check("record.html", lambda: self.check_told("it is a rendering: it is"), "page"),
            Check("README.txt", lambda: self.check_told("it is held to nothing else: it is")),
            Check("release", lambda: self.check_told(f"{self.need('told')} is"), is_file=False),
            Check("cosignatures", lambda: check_cosignatures(
                self.need("anchor"), policy, self.cosigned), "cosignatures", is_file=False),
            Check("checkpoint.tsr", self.check_timestamp, "timestamp"),
            Check("tsa-chain.pem", lambda: check_authority(tsa_ca), "timestamp"),
            Check("signing-chain.pem", self.check_signer, "signer"),
            Check("time of bundle.sig", self.check_bundle_time, "end of public-key.pem",
                  is_file=False),
            Check("time of SHA256SUMS.sig", self.check_pack_time, "end of pack-key.pem",
                  is_file=False),
            Check("verify.py", self.check_verifier),
        ]

    def ended(self) -> int:
        if self.options.tsa_ca is not None and "timestamp" not in self.groups:
            self.report.attempt("checkpoint.tsr", refuse,
                                NotChecked("there is none to hold to --tsa-ca"))
        if self.options.ca is not None and "signer" not in self.groups:
            self.report.attempt("signing-chain.pem", refuse,
                                NotChecked("there is none to hold to --ca"))
        bundle, packer = self.is_valid("public-key.pem"), self.is_valid("pack-key.pem")
        besides = "; THE BUNDLE IS BY YOUR KEY, WHO PACKED IT IS NOT KNOWN"
        return self.report.ended([*self.needed], "" if bundle else "THE PACK'S",
                                 besides if bundle and not packer else "")

    def read_bundle(self) -> str:
        """Read the bundle, as far as other files speak of it."""
        record, whose, agent, named = read_bundle(data := self.view("bundle.json", MAX_BUNDLE))
        key = key_id(public_key(self.read("public-key.pem")))
        require(named == key, "it names another key than public-key.pem")
        self.found.update(record_id=record["id"], digest=sha256(data).hex(), session=whose,
                          created_at=record.get("created_at"), bundle_agent=agent)
        return f"it is the bundle of {record['id']}"

    def read_anchor(self) -> str:
        """Read where the record is in the log, and check the log's signature."""
        anchored = read_canonical(self.view("anchor.json"))
        named = type(anchored) is dict and anchored.get("schema") == "records/anchor/v2"
        schema, release, said, vkey, proof, lines, timestamp, *agents = members(
            anchored, ANCHOR + " agent:dict" * named)
        known = named or schema == "records/anchor/v1"
        require(known, "this is not an anchor of a kind that is known here")
        self.found["told"] = release
        for agent in agents:
            called, name = members(agent, AGENT)
            # A bundle of the second form has the name, too.
            signed = self.found.get("bundle_agent", {})
            require(agent.items() <= {**agent, **signed}.items(),
                    f"the bundle is by another agent than {called}, called {name!r}")
            besides = "" if "name" in signed else f", and that {called} was called {name!r},"
            self.found.update(agent=agent, told=release + besides)
        anchor = read_anchor(vkey, proof, lines)
        others = [] if timestamp is None else [f"a timestamp of {members(timestamp, STAMP)[0]}"]
        if lines:
            others.append("one cosignature" if len(lines) == 1 else f"{len(lines)} cosignatures")
        true = "the service's own log" + (f", with {' and '.join(others)}" if others else " alone")
        require(said == true, f"anchored_by is not what follows: {true}")
        self.found.update(anchor=anchor, release=release, timestamp=timestamp)
        self.groups |= {"timestamp"} if timestamp else set()
        self.groups |= {"cosignatures"} if lines or self.options.policy else set()
        return f"its checkpoint is signed by {anchor.key.name}"

    def leaf(self) -> dict[str, str]:
        return {"type": "record", "bundle_sha256": self.need("digest")}

    def check_inclusion(self) -> str:
        self.found["included"] = check_inclusion(self.need("anchor"), self.leaf())
        return str(self.found["included"])

    def seen(self) -> str:
        """Return when others, whom the caller trusts, had seen the log with this bundle in it."""
        self.need("included")
        found = [self.found["stamped"]] if self.options.tsa_ca and "stamped" in self.found else []
        for moment, _ in self.cosigned:
            names = [name for when, name in self.cosigned if when <= moment]
            if self.options.policy.quorum != "none" and self.options.policy.is_met_by(names):
                found.append(moment)
        return min(found, default="")

    def check_bundle_time(self) -> str:
        """Check that the bundle was signed before its key ended.

        What others saw shows that. `created_at` is the word of who signed: it can only tell
        against the bundle.
        """
        (retired, revoked, reason), seen = self.end("public-key.pem"), self.seen()
        others = "whom --tsa-ca or --policy trusts had seen it in the log by then"
        require(not revoked or "" < seen <= revoked,
                f"its key was revoked at {revoked} ({reason}), and nobody {others}")
        if retired and not "" < seen <= retired:
            said, why = instant(self.need("created_at")), f"its key was retired at {retired}"
            require(said <= retired, f"{why}, and it says itself that it was made at {said}")
            if not revoked:
                raise NotChecked(f"{why}; that it is older is its own word, and nobody {others}")
        return f"others had seen it in the log by {seen}, before its key ended"

    def times(self) -> list[str]:
        return [instant(self.need("created_at")), self.found.get("stamped", ""),
                *(when for when, _ in self.cosigned), *self.found.get("newest finding", [])]

    def expected_proof(self) -> bytes:
        """Return the C2SP tlog-proof that says the same as anchor.json."""
        anchor: Anchor = self.need("anchor")
        lines = ["c2sp.org/tlog-proof@v1", f"index {anchor.place}", *map(to_base64, anchor.path)]
        signed = "".join(f"\u2014 {name} {to_base64(key_hash + payload)}\n"
                         for name, key_hash, payload in dict.fromkeys(anchor.lines))
        return "\n".join([*lines, "", ""]).encode() + anchor.note + signed.encode()

    def expected_manifest(self) -> bytes:
        """Return the manifest, which is not signed: all in it must follow from what is."""
        anchor, about, release = map(self.need, ("anchor", self.about, "release"))
        checkpoint = {"origin": anchor.key.name, "size": anchor.size, "root": anchor.root.hex()}
        names = {*self.sums, *OTHERS} - {"manifest.json"}
        agent = {"agent": self.found["agent"]} if "agent" in self.found else {}
        return write_json({
            "schema": f"records/manifest/v{1 + len(agent)}", self.about: about, **agent,
            "release": release,
            "pack_key_id": key_id(public_key(self.read("pack-key.pem"))), "checkpoint": checkpoint,
            "files": {name: {"sha256": sha256(data).hex(), "size": len(data)} for name, data in
                      ((name, self.view(name, MAX_PACK)) for name in names)}})

    def check_prov(self) -> str:
        """Check which bundle prov.json is about. It can be large, and is not parsed."""
        named = re.findall(rb'"rs:sha256":"([^"]*)"', self.view("prov.json", MAX_PACK))
        require(named == [self.need("digest").encode()], "it is not about this bundle")
        return self.check_told("it names the bundle's digest: all else in it is")

    def check_signer(self) -> str:
        """Check whose the key of the bundle is, as an authority says, when others had seen it."""
        found, key = certificates(self.read("signing-chain.pem")), self.read("public-key.pem")
        signer, roots = found[0], self.options.ca
        own = signer.spki == ED25519_SPKI + public_key(key)
        require(own, "its first certificate is of another key than public-key.pem")
        require(signer.may(0) or signer.may(1), "its certificate is not for signatures")
        said = f"the key is of {named(signer.subject)}, according to {named(signer.issuer)}"
        if roots is None:
            raise NotChecked(f"only the pack says that {said}: give --ca")
        seen = self.seen()
        if not seen:
            raise NotChecked(f"it says that {said}, and for which time is not known: nobody whom "
                             "--tsa-ca or --policy trusts saw the bundle")
        when = datetime.strptime(f"{seen}+0000", "%Y-%m-%dT%H:%M:%S.%fZ%z")
        check_chain(signer, found, roots, when, DOCUMENTS)
        return f"{said}, whose certificates were valid at {seen}"

    def check_findings(self) -> str:
        """Check which record the findings are of, and their order."""
        data = read_json(self.view("findings.json", MAX_BUNDLE))
        schema, record_id, total, found = members(data, FINDINGS)
        known = [schema, record_id] == ["records/findings/v1", self.need("record_id")]
        require(known and total >= len(found), "they are not the findings of this record")
        places = []
        for each in found:
            _, created_at, _, _, name, _, about, *_ = members(each, FINDING)
            require(about == record_id, "a finding in it is another record's")
            places.append((name, instant(created_at)))
        order = sorted({name for name, _ in places})
        require(order == [name for name, _ in places], "they are not in order, or one stands twice")
        self.found["newest finding"] = [max(when for _, when in places)] if places else []
        if total > len(found):
            raise NotChecked(f"it has the first {len(found)} of {total} findings")
        return self.check_told(f"{total} when the pack was made: that these are all, is")

    def statement_key(self) -> str:
        return "session-key.pem" if "session key" in self.groups else "public-key.pem"

    def read_statement(self) -> str:
        """Read the statement of the record's session."""
        said = self.take_statement()
        require(said.whose == self.need("session"), "it is the statement of another session")
        self.found["statement"] = said
        known = (self.options.key or {}).get(public_key(self.read(self.statement_key())), End())
        if known != End():
            self.groups.add("end of its key")
        return said.words

    def take_statement(self) -> Statement:
        said = read_statement(self.view("session-statement.json"))
        key = key_id(public_key(self.read(self.statement_key())))
        require(said.key_id == key, f"it names another key than {self.statement_key()}")
        return said

    def check_place(self) -> str:
        """Check the record's place in its session."""
        said = self.need("statement")
        index, size, path = members(read_canonical(self.view("session-proof.json")), PLACE)
        hashes = [members({"hash": each}, "hash:hash")[0] for each in path]
        digest, created_at = bytes.fromhex(self.need("digest")), instant(self.need("created_at"))
        good = size == said.records and included(digest, index, size, hashes, said.root)
        require(good, "the path does not lead from the bundle to the statement's root")
        require(said.first <= created_at <= said.last, "the record is of another time")
        return f"{index + 1} of {size} of a sealed session"

    def check_statement_time(self) -> str:
        """Check that the key that signed the statement had not ended when the session did."""
        ended = self.need("statement").ended
        retired, revoked, reason = self.end(self.statement_key())
        if revoked:
            raise NotChecked(f"its key was revoked at {revoked} ({reason}): the session's own pack "
                             "has when others saw it in the log")
        why = f"its key was retired at {retired}, and it says that it is of {ended} or later"
        require(retired and ended <= retired, why)
        return why

    def check_timestamp(self) -> str:
        told, stamped = self.need("timestamp"), self.read("checkpoint")
        response, chain = self.read("checkpoint.tsr"), self.read("tsa-chain.pem")
        found = check_timestamp(response, stamped, chain, self.options.tsa_ca)
        # The first form of anchor.json had microseconds, or the whole second and zeros.
        known = {found} if "agent" in self.found else {cut(found), cut(f"{found[:19]}Z")}
        files = {"response": "checkpoint.tsr", "chain": "tsa-chain.pem"}
        same = told == {"gen_time": told["gen_time"], **files} and told["gen_time"] in known
        require(same, "anchor.json tells of another timestamp")
        self.found["stamped"] = cut(found)
        return f"it is a timestamp of the checkpoint at {found}"

def lines_of(data: Data) -> Iterable[bytes]:
    """Yield the lines of a file, without their newlines; each must have one."""
    begin = 0
    for found in re.finditer(rb"\n", data):
        require(found.start() - begin <= MAX_LINE, f"a line has more than {MAX_LINE} bytes")
        yield bytes(data[begin : found.start()])
        begin = found.end()
    require(begin == len(data), "its last line is cut off")

def listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")

class SessionPack(RecordPack):
    """The pack of a whole sealed session: its statement is proven as a record's bundle is."""
    marker = "session-digests.txt"
    about = "session_id"
    needed = ("session-statement.sig", "SHA256SUMS.sig", "manifest.json", "inclusion",
              "session-digests.txt", "records.ndjson", "bundles.ndjson")

    def table(self) -> list[Check]:
        others = {"bundle.json", "bundle.sig", "record.tlog-proof", "prov.json", "findings.json",
                  "record.html", "session-statement.json", "session-statement.sig",
                  "session-key.pem", "session-proof.json", "time of session-statement.sig",
                  "time of bundle.sig"}
        return [
            Check("session-statement.json", self.read_statement),
            Check("session-statement.sig", lambda: self.check_signature(
                "session-statement.json", "public-key.pem")),
            *(each for each in super().table() if each.name not in others),
            Check("session.tlog-proof", lambda: self.check_same(
                "session.tlog-proof", self.expected_proof)),
            Check("keys.json", self.read_keys),
            Check("session-digests.txt", self.read_digests),
            Check("records.ndjson", self.read_records),
            Check("bundles.ndjson", self.check_bundles),
            Check("findings.ndjson", self.check_session_findings),
            Check("time of session-statement.sig", self.check_bundle_time, "end of public-key.pem",
                  is_file=False),
            Check("time of the bundles", self.check_bundles_time, "end of a key", is_file=False),
        ]

    def leaf(self) -> dict[str, str]:
        return {"type": "session", "statement_sha256": self.need("digest")}

    def read_statement(self) -> str:
        said, digest = self.take_statement(), sha256(self.view("session-statement.json")).hex()
        self.found.update(statement=said, session_id=said.whose[0], digest=digest,
                          created_at=said.ended, bundle_agent=said.agent)
        return said.words

    def read_keys(self) -> str:
        """Read the keys that signed the bundles, and hold them to those from outside."""
        (keys,) = members(read_canonical(self.view("keys.json")), "keys:list")
        found = public_keys(self.read("keys.json")) if keys else []
        self.found["keys"] = {key_id(key): key for key, _ in found}
        if not found:
            return "nothing is signed with any"
        if self.options.key is None:
            raise NotChecked("only the pack says whose keys these are: give --key")
        strange = [name for name, key in self.found["keys"].items() if key not in self.options.key]
        require(not strange, f"{listed(strange)}: none of the keys given by --key")
        if any(End(*self.options.key[key]) != End() for key, _ in found):
            self.groups.add("end of a key")
        return f"{listed(list(self.found['keys']))}: given by --key"

    def read_digests(self) -> str:
        """Hold the sealed digests to the root that was signed."""
        said, text = self.need("statement"), self.view("session-digests.txt", MAX_PACK)
        digests = [members({"digest": str(line, "latin-1")}, "digest:hash")[0]
                   for line in lines_of(text)]
        require(len(digests) == said.records == len(set(digests)),
                f"there are {len(digests)}, not {said.records}, or one is there twice")
        root = Tree(sha256(b"\x00" + digest) for digest in digests).root()
        require(root == said.root, "these are not the digests whose root was signed")
        self.found["digests"] = digests
        return f"the root over {len(digests)} of them was signed"

    def read_records(self) -> str:
        """Say what became of each sealed record, and which others there are."""
        digests, counts = self.need("digests"), dict.fromkeys(("present", "expired"), 0)
        absent, added, unlogged, number = [], [], [], -1
        for number, line in enumerate(lines_of(self.view("records.ndjson", MAX_PACK))):
            place, status, digest, name, *_ = self.record_line(read_canonical(line))
            called = f"{name}, {digest.hex()}" if name else digest.hex()
            if number >= len(digests):
                require(status == "unsealed", f"line {number + 1} is of more than was sealed")
                added.append(f"({called})")
                continue
            called = f"{number + 1} of {len(digests)} ({called})"
            good = digest == digests[number] and status != "unsealed"
            require(good, f"{called} is not what was sealed there")
            if status == "missing":
                absent.append(called)
            else:
                counts[status] += 1
                unlogged += [called] if place is None else []
        held = min(number + 1, len(digests))
        require(held == len(digests), f"it ends after {held} of {len(digests)} records")
        self.found["present"] = counts["present"]
        told = {"in the session, but not sealed with it": added, "sealed, and not here": absent,
                "without a leaf in the log": unlogged}
        wrong = "; ".join(f"{what}: {listed(names)}" for what, names in told.items() if names)
        require(not added, wrong)
        if wrong:
            raise Incomplete(wrong)
        expired = (f"; {counts['expired']} have expired: their digests prove that they were"
                   if counts["expired"] else "")
        return f"{counts['present']} of {len(digests)} are here{expired}"

    @staticmethod
    def record_line(value: Any) -> list[Any]:
        place, digest, status, *named = members(
            value, "leaf_index:any sha256:hash status:str id:any key_id:any signature:any")
        kinds = {type(each) for each in named}
        require(status in ("present", "expired", "missing", "unsealed") and
                (kinds == {str} or (kinds == {type(None)} and status == "missing")),
                "it does not say what became of a record")
        require(place is None or (type(place) is int and place >= 0), "leaf_index is none")
        return [place, status, digest, *named]

    def check_bundles(self) -> str:
        """Check every bundle that is here: its digest, signature, and whose it is."""
        present, keys, said = self.need("present"), self.need("keys"), self.need("statement")
        lines = iter(lines_of(self.view("bundles.ndjson", MAX_PACK)))
        newest: dict[str, str] = {}
        bad, number = [], 0
        for told in lines_of(self.view("records.ndjson", MAX_PACK)):
            row, number = read_canonical(told), number + 1
            if row["status"] != "present":
                continue
            line = next(lines, None)
            called = f"{number} of {said.records} ({row['id']})"
            if line is None:
                raise Incomplete(f"it ends before the bundle of {called}")
            require(sha256(line).hex() == row["sha256"],
                    f"where that of {called} must be, there are other bytes")
            try:
                when = self.check_one(line, row, keys, said)
                newest[row["key_id"]] = max(when, newest.get(row["key_id"], ""))
            except Invalid as error:
                bad.append(f"{called}: {error}")
        require(next(lines, None) is None, "it has more bundles than are told of")
        require(not bad, listed(bad))
        self.found["newest"] = newest
        return f"{present} of {said.records} are here, each signed"

    @staticmethod
    def check_one(line: bytes, row: dict[str, Any], keys: dict[str, bytes], said: Statement) -> str:
        record, whose, _, named = read_bundle(line)
        require(row["key_id"] == named and named in keys, "it is by a key that is not here")
        signature = from_base64(row["signature"])
        require(ed25519_verifies(keys[named], signature, line), "its signature does not hold")
        require(whose == said.whose and record["id"] == row["id"], "it is of another session")
        when = instant(record.get("created_at"))
        require(said.first <= when <= said.last, "it is of another time")
        return when

    def check_bundles_time(self) -> str:
        """Check that no bundle was signed after its key had ended."""
        seen, named = self.seen(), []
        for name, when in self.need("newest").items():
            retired, revoked, reason = self.options.key[self.need("keys")[name]]
            require(not revoked or "" < seen <= revoked, f"{name} was revoked at {revoked} "
                    f"({reason}), and nobody whom --tsa-ca or --policy trusts had seen the "
                    "statement by then")
            require(not retired or when <= retired or "" < seen <= retired,
                    f"{name} was retired at {retired}, and a bundle says that it is of {when}")
            named += [name] if retired or revoked else []
        return f"{listed(named)}: the bundles are older than the end of their key"

    def check_session_findings(self) -> str:
        """Check whose findings they are, their order, and that none was taken out since."""
        said = self.need("statement")
        counts, last, newest = dict.fromkeys(said.findings, 0), "", [""]
        for line in lines_of(self.view("findings.ndjson", MAX_PACK)):
            _, created_at, _, _, name, _, _, _, about, severity, *_ = members(
                read_json(line), FINDING.replace("record_id:str", "record_id:any"))
            require(about == said.whose[0], "a finding in it is another session's")
            require(name > last, "they are not in order, or one stands twice")
            counts[severity], last = counts.get(severity, 0) + 1, name
            newest.append(instant(created_at))
        gone = [f"{count - counts[each]} {each}" for each, count in said.findings.items()
                if counts[each] < count]
        if gone:
            raise Incomplete(f"of those that the statement counts: {listed(gone)}")
        self.found["newest finding"] = [max(newest)]
        return self.check_told(f"{sum(counts.values())} when the pack was made: that these are "
                               "all, is")

PACKS = (SessionPack, RecordPack)

def check_pack(options: argparse.Namespace, report: Report) -> int:
    """Check a pack: one of its files says of what kind it is; return the exit code."""
    pack = Pack(options, report)
    opened = report.attempt("folder" if pack.path.is_dir() else "archive", pack.open)
    if not opened and not pack.files:
        return report.ended([], "", "")
    sums = bytes(pack.files.get("SHA256SUMS", b"")[:MAX_SMALL])
    kind = next((each for each in PACKS if each.marker in pack.files or
                 f"  {each.marker}\n".encode() in sums), RecordPack)
    found = kind(options, report)
    found.files = pack.files
    return found.check()

def check_authority(authorities: list[Certificate] | None) -> None:
    if authorities is None:
        raise NotChecked("only the pack says whose root the timestamp's chain ends with: --tsa-ca")

# --- The audit chain -----------------------------------------------------------------------------

class Chain:
    """An exported audit chain, read line by line: of each entry only its hash is kept.

    An export may begin behind an entry: what the first one says of that is the beginning.
    """

    def __init__(self) -> None:
        self.hashes, self.last = bytearray(32), 0  # before the first entry stand zeros
        self.after = 0  # the entry that it begins behind
        self.tenant = self.action = ""  # as the last entry says
        self.names: dict[str, None] = {}  # of the chain, as its anchors say
        self.trailer: dict[str, Any] = {}
        self.anchors: list[tuple[str, Anchor, dict[str, Any]]] = []  # each with its name

    def hash_at(self, seq: int) -> bytes:
        at = 32 * (seq - self.after)
        return bytes(self.hashes[at : at + 32]) if at >= 0 else b""

    def read(self, stream: BinaryIO) -> str:
        """Recompute every entry up to the trailer."""
        for line in iter(lambda: stream.readline(MAX_LINE), b""):
            require(not self.trailer, "something follows the trailer")
            if not line.endswith(b"\n"):
                raise Incomplete(f"the line after entry {self.last} is cut off")
            try:
                self.take(line[:-1])
            except Invalid as error:
                raise Invalid(f"entry {self.last + 1}: {error}") from None
        if not self.trailer:
            raise Incomplete("the export has no trailer, so its end may be missing")
        begins = f", behind entry {self.after} {self.hash_at(self.after).hex()}" * (self.after > 0)
        return f"{self.last}; the last has the hash {self.hash_at(self.last).hex()}{begins}"

    def take(self, line: bytes) -> None:
        """Check the next entry, or keep the trailer."""
        entry = read_json(line)
        if isinstance(entry, dict) and entry.get("type") == "trailer":
            self.trailer = read_canonical(line)
            if self.last == 0 and "after" in entry:  # no entry says where it begins
                self.after, before = members(entry["after"], HEAD)
                self.last, self.hashes = self.after, bytearray(before)
            return
        later = isinstance(entry, dict) and "outcome" in entry
        seq, before, stated, tenant, action = members(entry, ENTRY + OUTCOME * later)[:5]
        if self.last == 0 < seq - 1:
            self.after = self.last = seq - 1
            self.hashes, self.tenant = bytearray(before), tenant
        follows = seq == self.last + 1 and before == self.hash_at(self.last)
        require(follows, "it does not follow the entry before")
        # What is hashed is the line without this member.
        hashed = line.replace(b'"hash":"%b",' % stated.hex().encode(), b"", 1)
        whole = {**read_json(hashed), "hash": stated.hex()} == entry
        require(whole and sha256(hashed) == stated, "its hash is not that of what it says")
        good = tenant == self.tenant if seq > 1 else action == "tenant.create"
        require(good, "it is of another chain, or not how one begins")
        self.hashes += stated
        self.last, self.tenant, self.action = seq, tenant, action

    def check_trailer(self) -> None:
        whole = {"after": {"seq": 0, "hash": "0" * 64}, **self.trailer}
        _, entries, head, listed, total, after = members(whole, TRAILER + RANGE)
        begin, before = members(after, HEAD)
        seq, digest = members(head, HEAD)
        if seq == self.last == entries == 0:
            raise Incomplete("it has no entry: what was asked for ends before the chain begins")
        good = seq == self.last > 0 and digest == self.hash_at(seq)
        good = good and entries == seq - begin and (begin, before) == (
            self.after, self.hash_at(begin))
        require(good and total >= len(listed), "it is not about what stands before it")
        if total and not listed:
            raise Incomplete(f"none of the {total} anchors is listed")

    def check_head(self, seq: int, digest: str) -> None:
        if seq > self.last:
            raise Incomplete("the chain ends before it")
        if seq < self.after:
            raise Incomplete("the export begins behind it")
        require(self.hash_at(seq).hex() == digest, "the chain has another entry there")

    def read_anchor(self, name: str, value: Any) -> str:
        """Check that the log has a leaf with the hash of this chain's entry."""
        if isinstance(value, dict) and len(value) == 2:
            seq, digest = members(value, HEAD)
            require(digest == self.hash_at(seq), "the chain has no such entry")
            raise NotChecked(f"entry {seq}; its evidence is not in the export: give --anchors")
        seq, digest, at, named, vkey, proof, lines, response, chain = members(value, ENTRY_ANCHOR)
        require(0 < seq <= self.last and digest == self.hash_at(seq), "the chain has no such entry")
        self.names[named.hex()] = None
        if [vkey, proof, lines, response, chain] == [None, None, [], None, None]:
            raise NotChecked("it waits for its place in the log")
        vkey, proof = members({"vkey": vkey, "log_proof": proof}, "vkey:str log_proof:dict")
        anchor = read_anchor(vkey, proof, lines)
        leaf = {"seq": seq, "hash": digest.hex(), "at": at, "chain": named.hex()}
        found = check_inclusion(anchor, {"type": "audit-head", **leaf})
        self.anchors.append((name, anchor, value))
        return f"entry {seq}, anchored at {at}: {found}"

    def check_name(self, kept: str | None, held: int, anchored: int) -> str:
        """Check that it is the chain that the caller means: by its name, or a head that was kept.

        A leaf of the log names a chain, and no tenant: anybody's leaf may carry any name.
        """
        name = kept or min(self.names, default="nothing")
        said = f"its anchors say {', '.join(self.names) or 'nothing'}, its entries {self.tenant}"
        require({name}.issuperset(self.names), f"{said}: that is not one chain, or not {name}")
        if kept and anchored:
            return f"{said}: --chain names it, and a log that the policy lists has it"
        if 0 < held >= anchored:
            return f"{said}: it leads through entry {held}, which --head gave"
        raise NotChecked(f"{said}, and nobody else says whose it is: give --chain and --policy")

def check_audit_timestamp(anchor: Anchor, value: dict[str, Any], trusted: Any) -> str:
    told = {name: value[name] for name in ("timestamp", "tsa_chain")}
    response, chain = members(told, "timestamp:str tsa_chain:str")
    found = check_timestamp(from_base64(response), anchor.note, chain.encode(), trusted)
    return f"its checkpoint was there at {found}"

def listed_anchors(chain: Chain, options: argparse.Namespace) -> list[Any]:
    """Return the anchors of an export's entries: the trailer's, with the evidence of --anchors."""
    given = {(each.get("seq"), each.get("hash")): each for each in options.anchors}
    names = [each if isinstance(each, dict) else {} for each in chain.trailer["anchors"]]
    found = [given.pop((name.get("seq"), name.get("hash")), each)
             for name, each in zip(names, chain.trailer["anchors"])]
    return found + [each for (seq, _), each in given.items()
                    if type(seq) is int and chain.after < seq <= chain.last]

def check_anchors(chain: Chain, options: argparse.Namespace, report: Report) -> int:
    """Check all anchors; return the newest entry of those in logs that are known from outside.

    Witnesses cosign a moment after the log has a head. So where an older anchor has the policy's
    quorum, those behind it may wait for theirs; until then they cover nothing.
    """
    attempt, covering = report.attempt, chain.anchors[:0]
    for number, value in enumerate(listed_anchors(chain, options), 1):
        attempt(f"anchor {number}", chain.read_anchor, f"anchor {number}", value)
    for name, anchor, value in sorted(chain.anchors, key=lambda each: each[2]["seq"]):
        if (anchor.lines or options.policy) and attempt(
                f"{name} cosignatures", check_cosignatures, anchor, options.policy, [], covering):
            covering.append((name, anchor, value))
        if (value["timestamp"], value["tsa_chain"]) != (None, None):
            attempt(f"{name} timestamp", check_audit_timestamp, anchor, value, options.tsa_ca)
    keys = dict.fromkeys(anchor.key for _, anchor, _ in chain.anchors)
    known = [key for key in keys if attempt("the log's key", check_log_key, key, options.policy)]
    if not chain.anchors:
        attempt("anchors", refuse, NotChecked("none is in a log"))
    if any(value["timestamp"] for _, _, value in chain.anchors):
        attempt("timestamps' roots", check_authority, options.tsa_ca)
    return max((value["seq"] for _, anchor, value in covering if anchor.key in known), default=0)

def check_audit(options: argparse.Namespace, report: Report) -> int:
    """Check an exported audit chain; return the exit code."""
    form, why = "([1-9][0-9]{0,15}):([0-9a-f]{64})", "it is not as --help says"
    heads = [matched(form, head, f"--head {head}: {why}") for head in options.head]
    if options.chain is not None:
        matched("[0-9a-f]{64}", options.chain, f"--chain {options.chain}: {why}")
    chain, held, anchored, besides = Chain(), 0, 0, ""
    tell_unchecked(options, report)
    with options.path.open("rb") as stream:
        report.attempt("entries", chain.read, stream)
    for head in heads:
        if report.attempt(f"head {head[1]}", chain.check_head, int(head[1]), head[2]):
            held = max(held, int(head[1]))
    if chain.trailer and report.attempt("trailer", chain.check_trailer):
        anchored = check_anchors(chain, options, report)
    through = max(held, anchored)
    if chain.after:
        besides = f"; A PART OF THE CHAIN, BEHIND ENTRY {chain.after}"
    if not report.attempt("chain", chain.check_name, options.chain, held, anchored):
        besides += "; WHOSE CHAIN THIS IS, IS NOT KNOWN" + (f" BEHIND ENTRY {held}" if held else "")
    if 0 < through == chain.last - 1 and chain.action == "audit.export":
        # An export ends with the entry that it made of itself, which no anchor can cover yet.
        besides += f", BUT FOR ENTRY {chain.last}, THE EXPORT'S OWN, WHICH NOTHING COVERS"
    elif max(through, chain.after) < chain.last:
        begin = max(through, chain.after) + 1
        report.attempt(f"entries {begin} to {chain.last}", refuse, NotChecked(
            "no anchor or head covers them (an anchor counts in a log that --policy lists)"))
    return report.ended(["entries", "trailer"], "" if through else "THE EXPORT'S", besides)

# --- The period export ---------------------------------------------------------------------------

# The members of its lines besides `type`, and but for the first one `after`.
HEADER = "schema:str id:str tenant_id:str since:str until:str agent_id:any begin:dict"
BEGIN = "size:int nodes:list published_at:any"
RECORD = ("index:int id:str session_id:str agent_id:str kind:str created_at:str occurred_at:str "
          "bundle_sha256:hash content:str logged_at:str")
OUTSIDE = "id:str agent_id:str created_at:str"
SIGNED = "statement:dict signature:str public_key:str vkey:str checkpoint:str cosignatures:list "
EXPORT_STAMP = "gen_time:str response:str chain:str"
MOST_NAMES = 1000  # kinds and agents that are counted by name
MOST_HELD = 1 << 20  # records of sessions without a statement so far; each takes 48 bytes


class Export:
    """A period export, read line by line: what is kept does not grow with its records."""

    def __init__(self, kept: Iterable[bytes]) -> None:
        self.chain, self.lines, self.closed = b"", 0, False
        self.log, self.listed = Tree(), Tree()
        self.header: dict[str, Any] = {}
        self.trailer: dict[str, Any] = {}
        self.missing = set(kept)
        self.counts: dict[str, Any] = {
            "records": 0, "expired": 0, "first_at": None, "last_at": None}
        self.named: dict[str, dict[str, int]] = {"kind": {}, "agent_id": {}, "day": {}, "type": {}}
        self.leaves = {"records": 0, "sessions": 0, "outside": 0, "folded": 0}
        self.held: dict[str, bytearray] = {}  # id and digest of each record, by its session
        self.records_held, self.sessions = 0, [0, 0]  # sessions that were recomputed, and others
        self.full, self.faults = False, [""][:0]  # of sessions
        self.logged_at = ""
        self.late: tuple[str, int] = ("", 0)  # the first late record, and how many are

    def read(self, stream: BinaryIO) -> str:
        """Take every line up to the last one."""
        for line in iter(lambda: stream.readline(MAX_LINE), b""):
            number = self.lines + 1
            require(not self.closed, f"line {number} follows the last one")
            if not line.endswith(b"\n"):
                raise Incomplete(f"line {number} is cut off")
            try:
                self.take(line[:-1])
            except Invalid as error:
                raise Invalid(f"line {number}: {error}") from None
        if not self.closed:
            raise Incomplete("there is no last line, so the end is missing")
        return f"{self.lines}, with {self.counts['records']} records, none changed since written"

    def take(self, line: bytes) -> None:
        """Take a line: it must be about the next leaf, and follow from the line before."""
        value = read_canonical(line)
        require(type(value) is dict, "this is no line of an export")
        kind, after, at = value.pop("type", None), value.pop("after", None), self.log.size
        index = value.get("index")
        if self.lines and type(index) is int:
            require(index <= at, f"leaf {at} is missing: a line before this one was left out")
            require(index >= at, f"leaf {index} stands here twice: a line was added")
        takers = {"header": self.take_header, "record": self.take_record, "leaf": self.take_leaf,
                  "session": self.take_session, "fold": self.take_fold,
                  "statement": self.take_trailer}
        known = type(kind) is str and kind in takers
        require(known and (kind == "header") == (not self.lines), "no such line belongs here")
        require(after == (self.chain.hex()[:16] if self.lines else None),
                "the line before was changed, or one was left out or added between them")
        takers[kind](value)
        if kind != "statement":
            self.chain = sha256(self.chain + line)
        self.lines += 1

    def take_header(self, value: dict[str, Any]) -> None:
        schema, _, _, since, until, agent, begin = members(value, HEADER)
        size, nodes, published_at = members(begin, BEGIN)
        known = schema == "records/export/v1" and instant(since) < instant(until)
        require(known and type(agent) in (str, type(None)), "this is no period export known here")
        require(published_at is None or instant(published_at) <= since, "it begins too late")
        require(published_at is not None or not size, "nobody says when the log had this size")
        self.log.fold(size, nodes)
        self.header = value

    def has(self, created_at: str, agent: str) -> bool:
        """Say whether a record belongs to the period."""
        since, until, wanted = (self.header[name] for name in ("since", "until", "agent_id"))
        return since <= instant(created_at) < until and wanted in (None, agent)

    def take_record(self, value: dict[str, Any]) -> None:
        (_, named, session, agent, kind, created_at, occurred_at, digest, content,
         logged_at) = members(value, RECORD)
        require(self.has(created_at, agent), f"{named} does not belong to the period")
        require(content in ("stored", "expired"), "content is stored or expired")
        require(self.logged_at <= instant(logged_at) and instant(occurred_at),
                f"{named} is said to have entered the log before the record in front of it")
        self.log.grow(sha256(b'\0{"bundle_sha256":"%s","type":"record"}' % digest.hex().encode()))
        self.listed.grow(sha256(b"\0" + digest))
        self.missing.discard(digest)
        self.logged_at, counts = logged_at, self.counts
        if seconds(logged_at) - seconds(created_at) > 3600:
            self.late = (self.late[0] or named, self.late[1] + 1)
        counts["records"] += 1
        counts["expired"] += content == "expired"
        counts["first_at"] = min(counts["first_at"] or created_at, created_at)
        counts["last_at"] = max(counts["last_at"] or created_at, created_at)
        self.leaves["records"] += 1
        self.named["day"][created_at[:10]] = self.named["day"].get(created_at[:10], 0) + 1
        for counted, each in ((self.named["kind"], kind), (self.named["agent_id"], agent)):
            name = each if each in counted or len(counted) < MOST_NAMES else ""
            counted[name] = counted.get(name, 0) + 1
        place = bytes.fromhex(matched("rec_([0-9a-f]{32})", named, "this is no id")[1])
        self.held.setdefault(session, bytearray()).extend(place + digest)
        self.records_held += 1
        if self.records_held > MOST_HELD:
            self.held, self.records_held, self.full = {}, 0, True

    def take_leaf(self, value: dict[str, Any]) -> None:
        outside = " outside:dict" * ("outside" in value)
        _, leaf, *own = members(value, "index:int leaf:dict" + outside)
        kind = leaf.get("type")
        require(type(kind) is str, "this is no leaf")
        self.log.grow(sha256(b"\0" + write_json(leaf)))
        if own:
            named, agent, created_at = members(own[0], OUTSIDE)
            good = kind == "record" and not self.has(created_at, agent)
            require(good, f"{named} belongs to the period, and is not listed")
            self.leaves["outside"] += 1
        else:
            self.named["type"][kind] = self.named["type"].get(kind, 0) + 1

    def take_session(self, value: dict[str, Any]) -> None:
        """Hold a sealed session to the records that are listed of it."""
        _, named, statement = members(value, "index:int session_id:str statement:dict")
        sealed = {"statement_sha256": sha256(write_json(statement)).hex(), "type": "session"}
        self.log.grow(sha256(b"\0" + write_json(sealed)))
        self.leaves["sessions"] += 1
        told, count = statement.get("session"), statement.get("records")
        first, last = (statement.get(name) or "" for name in ("first_at", "last_at"))
        good = (statement.get("schema") == "records/session/v1" and type(count) is int
                and type(told) is dict and type(first) is type(last) is str)
        require(good and told.get("id") == named, f"this is no statement of {named}")
        found = self.held.pop(named, bytearray())
        self.records_held -= len(found) // 48
        whole = not count or (self.header["since"] <= first and last < self.header["until"])
        if whole and not self.full:
            rows = sorted(bytes(found[at:at + 48]) for at in range(0, len(found), 48))
            tree = Tree(sha256(b"\0" + row[16:]) for row in rows)
            self.sessions[0] += 1
            if len(rows) != count:
                self.faults.append(f"{named} was sealed with {count} records, and {len(rows)} of "
                                   "them are listed")
            elif tree.root().hex() != statement.get("root"):
                self.faults.append(f"{named} was sealed with other records than those listed")
        else:
            self.sessions[1] += 1

    def take_fold(self, value: dict[str, Any]) -> None:
        index, end, nodes = members(value, "index:int end:int nodes:list")
        require(end > index, "it has no leaves")
        self.log.fold(end, nodes)
        self.leaves["folded"] += end - index

    def take_trailer(self, value: dict[str, Any]) -> None:
        members(value, SIGNED + "timestamp:any")
        self.trailer, self.closed = value, True

    # What follows is checked when every line was read.

    @property
    def statement(self) -> dict[str, Any]:
        if not self.closed:
            raise NotChecked("this needs every line, and the lines above do not hold")
        return dict(self.trailer["statement"])

    def whole(self, check: Callable[[], str]) -> str:
        """Make a check that says something only if all lines hold."""
        self.statement  # noqa: B018 - it raises otherwise
        return check()

    def check_signature(self) -> str:
        """Check the signature of the statement, and that it is about these lines."""
        statement, key = self.statement, public_key(self.trailer["public_key"].encode())
        holds = ed25519_verifies(key, from_base64(self.trailer["signature"]), write_json(statement))
        require(holds, "the signature does not hold")
        require(statement.get("key_id") == key_id(key), "the statement names another key")
        about = {name: self.header[name] for name in
                 ("schema", "id", "tenant_id", "since", "until", "agent_id")}
        about.update(lines=self.lines - 1, chain=self.chain.hex(), root=self.listed.root().hex())
        self.check_same(statement, about)
        return f"it is signed with the key {key_id(key)}, over all lines before it"

    def check_same(self, statement: dict[str, Any], expected: dict[str, Any]) -> None:
        wrong = [name for name, value in expected.items() if statement.get(name, self) != value]
        require(not wrong, f"it states another {', '.join(wrong)} than follows from the lines")

    def check_totals(self) -> str:
        """Count again what the statement counts."""
        statement, named = self.statement, self.named
        told = statement.get("by_agent")
        listed = told if type(told) is list else []
        agents = [dict(each) for each in listed if type(each) is dict]
        names = [each.pop("name", "") for each in agents]
        require(all(type(each) in (str, type(None)) for each in names), "an agent's name is none")
        others = [{"type": kind, "leaves": named["type"][kind]} for kind in sorted(named["type"])]
        expected = {
            **self.counts,
            "by_kind": [{"kind": k or None, "records": n} for k, n in named["kind"].items()],
            "by_day": [{"day": day, "records": named["day"][day]} for day in sorted(named["day"])],
            "by_agent": [{"agent_id": k or None, "records": n}
                         for k, n in named["agent_id"].items()],
            "leaves": {**self.leaves, "others": others}}
        self.check_same({**statement, "by_agent": agents}, expected)
        return (f"{self.counts['records']} records of {len(named['agent_id'])} agents on "
                f"{len(named['day'])} days; the bundles of {self.counts['expired']} have expired")

    def check_key(self, keys: dict[bytes, End] | None) -> str:
        """Hold the key of the statement to those from outside."""
        statement, key = self.statement, public_key(self.trailer["public_key"].encode())
        if keys is None:
            raise NotChecked(f"only the export says whose key {key_id(key)} is: give --key")
        require(key in keys, f"{key_id(key)} is none of the keys given by --key")
        retired, revoked, reason = keys[key]
        if revoked:
            raise NotChecked(f"{key_id(key)} was revoked at {revoked} ({reason}): have the service "
                             "make the export anew")
        good = retired is None or instant(statement.get("made_at")) <= retired
        require(good, f"{key_id(key)} was retired at {retired}, before the export was made")
        return f"{key_id(key)} was given by --key"

    def check_log(self, found: list[Anchor]) -> str:
        """Compute the root of the log from all lines; add the log's checkpoint to `found`."""
        statement, trailer = self.statement, self.trailer
        anchor = read_checkpoint(*(trailer[name] for name in ("vkey", "checkpoint",
                                                              "cosignatures")))
        told = {"origin": anchor.key.name, "size": anchor.size, "root": anchor.root.hex()}
        log = statement.get("log")
        require(type(log) is dict and {**log, **told} == log, "it names another checkpoint")
        good = (self.log.size, self.log.root()) == (anchor.size, anchor.root)
        require(good, f"the lines lead to another root at {self.log.size} than the log signed")
        found.append(anchor)
        return f"the lines lead to the root at {anchor.size} that {anchor.key.name} signed"

    def check_period(self) -> str:
        """Say whether the log's sizes surround the period."""
        log, begin = self.statement.get("log"), self.header["begin"]
        end = instant(log.get("published_at") if type(log) is dict else None)
        since, until = self.header["since"], self.header["until"]
        said = (f"leaves {begin['size']} to {self.log.size} are those from before {since} to after "
                f"{until}")
        if end < until:
            raise NotChecked(f"the checkpoint of {end} is older than the period's end ({until}): "
                             "what came later, this export cannot show")
        return f"{said}, as the service dates its checkpoints"

    def check_late(self) -> str:
        """Say which records entered the log long after the time that they state."""
        first, count = self.late
        if count:
            raise NotChecked(f"{count} records entered the log more than an hour after they say "
                             f"they were made, {first} first: the log stood still, or they were "
                             "added later; witnesses and timestamps tell")
        return "each entered the log within an hour of the time that it states"

    def check_sessions(self) -> str:
        good, others = self.sessions
        require(not self.faults, f"{'; '.join(self.faults[:20])}"
                f"{f' and {len(self.faults) - 20} more' if len(self.faults) > 20 else ''}")
        if others:
            raise NotChecked(f"{good} sealed sessions have all their records here, {others} have "
                             "records beyond this export")
        return f"{good} sealed sessions, each with all its records"

    def check_others(self) -> str:
        """Say what is in the log between the records."""
        others, sessions = (self.named["type"].get(kind, 0) for kind in ("record", "session"))
        folded = self.leaves["folded"]
        here = self.log.size - self.header["begin"]["size"]
        if others or sessions or folded:
            agent = self.header["agent_id"] and ", or of other agents"
            raise NotChecked(
                f"of {here} leaves {others} are records that are not listed, {sessions} are "
                f"statements of other sessions, and {folded} are told by hashes alone: of other "
                f"tenants{agent or ''}, by the word of who signed. Sealed sessions, --kept, other "
                "exports and the public log can tell against it")
        return (f"{here} leaves, each of them here: no record or session is in the log between "
                "them that is not listed")

    def check_kept(self) -> str:
        if self.missing:
            raise Incomplete(f"{len(self.missing)} of the bundles that were kept are not listed, "
                             f"the first is {min(self.missing).hex()}")
        return "each bundle that was kept is listed"

    def check_stamp(self, authorities: list[Certificate] | None) -> str:
        told, response, chain = members(self.trailer["timestamp"], EXPORT_STAMP)
        note = self.trailer["checkpoint"].encode()
        found = check_timestamp(from_base64(response), note, chain.encode(), authorities)
        require(found == told, "another time is told than that of the timestamp")
        return f"the log was so at {found}: nothing that is listed was added later"

def seconds(text: str) -> float:
    """Return a time in seconds since 1970."""
    try:
        return datetime.fromisoformat(f"{text[:-1]}+00:00").timestamp()
    except ValueError:
        raise Invalid(f"{text} is no time that there was") from None

def kept_digests(data: bytes) -> list[bytes]:
    """Read a list of digests: the first word of each line."""
    words = [line.split()[0] for line in str(data, "latin-1").splitlines() if line.strip()]
    good = all(re.fullmatch("[0-9a-f]{64}", each) for each in words)
    require(words and good, "this is no list of SHA-256, in hex, one a line")
    return [bytes.fromhex(each) for each in words]

def check_export(options: argparse.Namespace, report: Report) -> int:
    """Check a period export; return the exit code."""
    kept = read_root(options.kept, kept_digests, MAX_PACK) if options.kept else []
    export, attempt = Export(kept), report.attempt
    found: list[Anchor] = []
    tell_unchecked(options, report)
    with options.path.open("rb") as stream:
        attempt("lines", export.read, stream)
    attempt("statement", export.check_signature)
    known = attempt("key", export.check_key, options.key)
    attempt("totals", export.check_totals)
    attempt("log", export.check_log, found)
    for anchor in found:
        attempt("the log's key", check_log_key, anchor.key, options.policy)
        if anchor.lines or options.policy:
            attempt("cosignatures", check_cosignatures, anchor, options.policy, [])
        if export.trailer["timestamp"] is not None:
            attempt("timestamp", export.check_stamp, options.tsa_ca)
            attempt("timestamp's roots", check_authority, options.tsa_ca)
        elif options.tsa_ca is not None:
            attempt("timestamp", refuse, NotChecked("there is none to hold to --tsa-ca"))
    attempt("period", export.check_period)
    attempt("times", export.whole, export.check_late)
    attempt("sessions", export.whole, export.check_sessions)
    attempt("other leaves", export.whole, export.check_others)
    if options.kept:
        attempt("kept", export.whole, export.check_kept)
    return report.ended(["lines", "statement", "totals", "log"],
                        "" if known else "THE EXPORT'S", "")

# --- The command line ----------------------------------------------------------------------------

def plain(data: bytes) -> bytes:
    """Return a text in UTF-8 with bare newlines, also where Windows saved it with others."""
    marks = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb": "utf-8-sig"}
    if data[:2] in marks:
        data = str(data, marks[data[:2]], "replace").encode()
    require(b"\0" not in data, "this is UTF-16 without a mark, or no text: save it as UTF-8")
    return data.replace(b"\r\n", b"\n")

def evidence(data: bytes) -> list[dict[str, Any]]:
    """Return the anchors in an answer of GET /v1/audit/anchors."""
    value = read_json(data)
    listed = value.get("data") if isinstance(value, dict) else None
    require(isinstance(listed, list) and all(isinstance(each, dict) for each in listed),
            "these are no anchors, as GET /v1/audit/anchors answers them")
    return [dict(each) for each in listed or ()]

def read_root(name: str, read: Callable[[bytes], Any], limit: int = MAX_BUNDLE) -> Any:
    try:
        return read(plain(read_file(pathlib.Path(name), limit)))
    except Verdict as error:
        raise Unreadable(f"{name}: {error}") from None

def parse(arguments: list[str]) -> argparse.Namespace:
    what = arguments[0] if arguments[:1] in (["audit"], ["export"]) else ""
    parser = argparse.ArgumentParser(
        f"verify.py {what}".strip(), allow_abbrev=False, description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    if what == "audit":
        parser.add_argument("path", metavar="CHAIN.ndjson", type=pathlib.Path)
        parser.add_argument("--chain", metavar="NAME")
        parser.add_argument("--head", metavar="SEQ:HASH", action="append", default=[])
        parser.add_argument("--anchors", metavar="FILE", action="append", default=[])
    elif what == "export":
        parser.add_argument("path", metavar="RECORDS.ndjson", type=pathlib.Path)
        parser.add_argument("--kept", metavar="FILE")
    else:
        parser.add_argument("path", metavar="PACK", type=pathlib.Path, nargs="?")
        parser.add_argument("--ca", metavar="PEM")
    if what != "audit":
        parser.add_argument("--key", metavar="FILE", action="append")
    parser.add_argument("--policy", metavar="FILE")
    parser.add_argument("--tsa-ca", metavar="PEM")
    parser.add_argument("--strict", action="store_true")
    return parser.parse_args(arguments[1:] if what else arguments,
                             argparse.Namespace(what=what, key=None, ca=None))

def run(options: argparse.Namespace) -> int:
    """Do what the command line says; return the exit code."""
    # Of all that is said of one key counts that it was revoked, else that it was retired.
    keys = [each for name in options.key or [] for each in read_root(name, public_keys)]
    ended = sorted(keys, key=lambda each: (each[1].revoked is not None, each[1].retired or ""))
    options.key = options.key and dict(ended)
    options.policy = options.policy and read_root(options.policy, Policy)
    options.tsa_ca = options.tsa_ca and read_root(options.tsa_ca, certificates)
    options.ca = options.ca and read_root(options.ca, certificates)
    if options.what == "audit":
        options.anchors = [each for name in options.anchors for each in read_root(name, evidence)]
    report = Report(strict=options.strict)
    checks = {"audit": check_audit, "export": check_export}
    return checks.get(options.what, check_pack)(options, report)

def main(arguments: list[str] | None = None) -> int:
    """Run as a program; return the exit code."""
    try:
        try:
            return run(parse(sys.argv[1:] if arguments is None else arguments))
        except (Unreadable, Verdict, OSError) as error:
            show(f"COULD NOT BE READ: {error}")
        except (ArithmeticError, LookupError, MemoryError, RuntimeError, ValueError) as error:
            # What nobody thought of must not look like a verdict, nor be a page of Python.
            show(f"COULD NOT BE READ: this program failed at it ({type(error).__name__})")
    except OSError:
        # Nobody reads on, or nothing can be written. Python would complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 2

# --- DER (X.690), RSA (RFC 8017) and ECDSA (FIPS 186-5) -------------------------------------------

class Der(NamedTuple):
    """A value in DER: its tag, its content, and the whole of it."""
    tag: int
    content: bytes
    raw: bytes

# A tag of one byte, and a length in the shortest of its forms, up to four bytes.
DER_HEAD = re.compile(rb"(?s)([^\x1f\x3f\x5f\x7f\x9f\xbf\xdf\xff])"
                      rb"([\0-\x7f]|\x81[\x80-\xff]|\x82[^\0].|\x83[^\0]..|\x84[^\0]...)")

def values(data: bytes) -> list[Der]:
    """Take values in DER apart that stand one after the other."""
    found: list[Der] = []
    at = 0
    while at < len(data):
        head = DER_HEAD.match(data, at)
        if head is None:
            raise Invalid("this is not DER")
        begin, size = head.end(), head[2]
        at = begin + (int.from_bytes(size[1:], "big") if len(size) > 1 else size[0])
        require(at <= len(data) and len(found) < 999, "this is not DER")
        found.append(Der(head[1][0], data[begin:at], data[head.start():at]))
    return found

def der(data: bytes, pattern: str) -> list[Der]:
    """Take DER apart by a pattern such as "30 ( 02 ?a0 * .. )", and return what its tags stand for.

    Brackets lead into the value before them; ? may be absent, * is of any tag, .. is all the rest.
    """
    found: list[Der] = []
    levels = [values(data)]
    for word in [*pattern.split(), ")"]:
        here = levels[-1]
        if word == "(":
            levels.append(values(found.pop().content))
        elif word == ")":
            require(not levels.pop(), "there is more in DER than there may be")
        elif word == "..":
            here.clear()
        else:
            fits = here and word.lstrip("?") in ("*", f"{here[0].tag:02x}")
            require(fits or word[0] == "?", "a value in DER is not of the type that belongs there")
            found.append(here.pop(0) if fits else Der(0, b"", b""))
    return found

def integer(value: Der) -> int:
    number = int.from_bytes(value.content, "big", signed=True)
    shortest = (number + (number < 0)).bit_length() // 8 + 1
    require(len(value.content) == shortest, "this is not an integer in DER")
    return number

def oid(value: Der) -> str:
    """Return an OBJECT IDENTIFIER in dots."""
    content = value.content[:65]  # what is longer is none, whatever it is
    parts = re.findall(rb"(?:[\x81-\xff][\x80-\xff]*)?[\x00-\x7f]", content)
    good = 0 < len(content) <= 64 and b"".join(parts) == content
    require(good, "this is not an object identifier")
    arcs = [int("".join(f"{byte & 0x7F:07b}" for byte in part), 2) for part in parts]
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, [first, arcs[0] - 40 * first, *arcs[1:]]))

def by_name(data: bytes, pattern: str) -> dict[str, list[Der]]:
    """Take values apart that each begin with their name, an OBJECT IDENTIFIER, and return them."""
    listed = [der(each.raw, pattern) for each in values(data)]
    found = {oid(name): rest for name, *rest in listed}
    require(len(found) == len(listed), "an extension or a signed attribute stands twice")
    return found

def flag(value: Der) -> bool:
    """Return a BOOLEAN, which stands there only if it is TRUE."""
    require(value.content == b"\xff" or not value.raw, "this is not a boolean in DER")
    return bool(value.raw)

def algorithm(value: Der) -> str:
    """Return the OID of an AlgorithmIdentifier."""
    return oid(der(value.raw, "30 ( 06 ?* )")[0])

def bits(value: Der) -> bytes:
    require(value.content[:1] == b"\x00", "this is not a string of whole bytes")
    return value.content[1:]

def moment(value: Der) -> datetime:
    """Return a UTCTime or GeneralizedTime in UTC, cut to microseconds."""
    try:
        return datetime.strptime(cut(stated(value)) + "+0000", "%Y-%m-%dT%H:%M:%S.%fZ%z")
    except ValueError:
        raise Invalid("this is not a time in UTC") from None

def stated(value: Der) -> str:
    """Return such a time in RFC 3339, with all the digits that stand there."""
    text, why = str(value.content, "latin-1"), "this is not a time in UTC"
    require(value.tag in (0x17, 0x18), why)
    century = ("19" if text >= "50" else "20") if value.tag == 0x17 else ""
    form = "([0-9]{4})" + 5 * "([0-9]{2})" + r"((?:\.[0-9]*[1-9])?)Z"
    return "{}-{}-{}T{}:{}:{}{}Z".format(*matched(form, century + text, why).groups())

def signature_verifies(spki: bytes, name: str, hashed: str, signature: bytes, data: bytes) -> bool:
    """Say whether a signature by the key in a SubjectPublicKeyInfo holds.

    `name` is the algorithm's OID; `hashed` is the digest, where the algorithm leaves that open.
    """
    if name == ED25519_KEY and not hashed:
        key_kind, key = der(spki, "30 ( 30 ( 06 ) 03 )")
        return oid(key_kind) == name and ed25519_verifies(bits(key), signature, data)
    kind, digest = SIGNATURES.get(name, (name, hashed))
    known = kind in (RSA_KEY, EC_KEY) and name != EC_KEY and digest in DIGEST_INFO
    if not known or hashed not in ("", digest):
        raise NotChecked(f"{name} is an algorithm this program does not check")
    key_kind, parameters, key = der(spki, "30 ( 30 ( 06 ?* ) 03 )")
    require(oid(key_kind) == kind, "the key is of another kind than the signature")
    summed = hashlib.new(digest, data).digest()
    if kind == RSA_KEY:
        return rsa_verifies(bits(key), signature, DIGEST_INFO[digest] + summed)
    curve = oid(parameters) if parameters.tag == 0x06 else "(explicit)"
    if curve not in CURVES:
        raise NotChecked(f"{curve} is a curve this program does not check")
    return ecdsa_verifies(CURVES[curve], bits(key), signature, summed)

DIGESTS = {"2.16.840.1.101.3.4.2.1": "sha256", "2.16.840.1.101.3.4.2.2": "sha384",
           "2.16.840.1.101.3.4.2.3": "sha512"}
DIGEST_INFO = {"sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
               "sha384": bytes.fromhex("3041300d060960864801650304020205000430"),
               "sha512": bytes.fromhex("3051300d060960864801650304020305000440")}  # RFC 8017, 9.2
RSA_KEY, EC_KEY, ED25519_KEY = "1.2.840.113549.1.1.1", "1.2.840.10045.2.1", "1.3.101.112"
SIGNATURES = {
    "1.2.840.113549.1.1.11": (RSA_KEY, "sha256"), "1.2.840.10045.4.3.2": (EC_KEY, "sha256"),
    "1.2.840.113549.1.1.12": (RSA_KEY, "sha384"), "1.2.840.10045.4.3.3": (EC_KEY, "sha384"),
    "1.2.840.113549.1.1.13": (RSA_KEY, "sha512"), "1.2.840.10045.4.3.4": (EC_KEY, "sha512")}

def rsa_verifies(key: bytes, signature: bytes, digest_info: bytes) -> bool:
    """Say whether an RSA signature with PKCS#1 v1.5 holds (RFC 8017, section 8.2.2)."""
    n, e = map(integer, der(key, "30 ( 02 02 )"))
    if n < 0 or not 2048 <= n.bit_length() <= 8192 or not 2 < e < 1 << 32:
        raise NotChecked(f"an RSA key of {n.bit_length()} bits is not one this program checks")
    size, value = (n.bit_length() + 7) // 8, int.from_bytes(signature, "big")
    padded = b"\x00\x01" + b"\xff" * (size - 3 - len(digest_info)) + b"\x00" + digest_info
    good = len(signature) == size and value < n
    return good and pow(value, e, n) == int.from_bytes(padded, "big")

# y² = x³ - 3x + b modulo p, with a point (x, y) of order n: p, b, x, y and n of each.
P256 = """
ffffffff00000001000000000000000000000000ffffffffffffffffffffffff
5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b
6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296
4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5
ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551"""
P384 = """
fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffeffffffff0000000000000000ffffffff
b3312fa7e23ee7e4988e056be3f82d19181d9c6efe8141120314088f5013875ac656398d8a2ed19d2a85c8edd3ec2aef
aa87ca22be8b05378eb1c71ef320ad746e1d3b628ba79b9859f741e082542a385502f25dbf55296c3a545e3872760ab7
3617de4a96262c6f5d9e98bf9292dc29f8f41dbd289a147ce9da3113b5f0b8c00a60b1ce1d7e819d7a431d7c90ea0e5f
ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973"""
CURVES = {"1.2.840.10045.3.1.7": [int(each, 16) for each in P256.split()],
          "1.3.132.0.34": [int(each, 16) for each in P384.split()]}

def ecdsa_verifies(curve: list[int], public: bytes, signature: bytes, digest: bytes) -> bool:
    """Say whether an ECDSA signature (in DER) by an uncompressed point holds (6.4.2)."""
    p, b, base_x, base_y, n = curve
    size, (r, s) = len(public) // 2, map(integer, der(signature, "30 ( 02 02 )"))
    x, y = int.from_bytes(public[1 : 1 + size], "big"), int.from_bytes(public[1 + size :], "big")
    good = len(public) == 1 + p.bit_length() // 4 and public[0] == 4 and max(x, y) < p
    if not good or (y * y - x * x * x + 3 * x - b) % p or not (0 < r < n and 0 < s < n):
        return False

    def add(one: Any, other: Any) -> Any:  # (X, Y, Z) is (X/Z², Y/Z³), at infinity where Z is 0
        (x1, y1, z1), (x2, y2, z2) = one, other
        if not (z1 and z2):
            return one if z1 else other
        square, other_square = z1 * z1 % p, z2 * z2 % p
        a, b = x1 * other_square % p, y1 * other_square * z2 % p
        across, slope = (x2 * square - a) % p, (y2 * square * z1 - b) % p
        z3, cube = across * z1 * z2 % p, across**3 % p
        a, b = a * across * across % p, b * cube % p
        if not across and not slope:  # a point and itself: its tangent
            slope, z3 = 3 * (x1 - square) * (x1 + square) % p, 2 * y1 * z1 % p
            a, b = 4 * x1 * y1 * y1 % p, 8 * y1**4 % p
        x3 = (slope * slope - cube - 2 * a) % p
        return x3, (slope * (a - x3) - b) % p, z3

    e = int.from_bytes(digest, "big") >> max(0, 8 * len(digest) - n.bit_length())
    u, v = (each * pow(s, -1, n) % n for each in (e, r))
    x, _, z = combined(add, (1, 1, 0), u, (base_x, base_y, 1), v, (x, y, 1))
    return z != 0 and bool(x * pow(z, -2, p) % p % n == r)

# --- Certificates (RFC 5280) and timestamps (RFC 3161 over CMS, RFC 5652) -------------------------

BASIC_CONSTRAINTS, KEY_USAGE, EXTENDED_USAGE = "2.5.29.19", "2.5.29.15", "2.5.29.37"
SUBJECT_KEY_ID, TIMESTAMPING, ANY_USAGE = "2.5.29.14", "1.3.6.1.5.5.7.3.8", "2.5.29.37.0"
SIGNED_DATA, TIMESTAMP_INFO = "1.2.840.113549.1.7.2", "1.2.840.113549.1.9.16.1.4"
CONTENT_TYPE, MESSAGE_DIGEST = "1.2.840.113549.1.9.3", "1.2.840.113549.1.9.4"
LONGEST_CHAIN = 10  # each of them may be tried with every certificate that is here
SIGNED_BY = {"1.2.840.113549.1.9.16.2.12": "sha1", "1.2.840.113549.1.9.16.2.47": "sha256"}

class Purpose(NamedTuple):
    """What a chain of certificates is for, and when it must have been valid."""
    words: str
    usages: set[str]
    certificate: str  # one of the chain, in words, with the moment
    others: set[str]  # extensions that are not understood even if they are not critical

STAMPS = Purpose("timestamping", {TIMESTAMPING, ANY_USAGE},
                 "when the timestamp was made ({}), a certificate of its authority", set())
DOCUMENTS = Purpose(
    "signing documents",  # by RFC 9336, S/MIME, Microsoft or Adobe
    {ANY_USAGE, "1.3.6.1.5.5.7.3.36", "1.3.6.1.5.5.7.3.4", "1.3.6.1.4.1.311.10.3.12",
     "1.2.840.113583.1.1.5"},
    "when others had seen the bundle ({}), a certificate of who signed it", {"2.5.29.30"})

class Certificate:
    """An X.509 certificate; `extensions` has, by OID, whether each is critical, and its value."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        signed, outer, signature = der(raw, "30 ( 30 30 03 )")
        _, serial, inner, issuer, begin, end, subject, spki, _, _, listed = der(
            signed.raw, "30 ( ?a0 02 30 30 30 ( * * ) 30 30 ?81 ?82 ?a3 )")
        self.signed, self.algorithm, self.signature = signed.raw, algorithm(outer), bits(signature)
        require(algorithm(inner) == self.algorithm, "a certificate names two algorithms")
        self.serial, self.issuer, self.subject = integer(serial), issuer.raw, subject.raw
        self.begin, self.end, self.spki = moment(begin), moment(end), spki.raw
        held = by_name(der(listed.content, "?30")[0].content, "30 ( 06 ?01 04 )")
        self.extensions = {name: (flag(critical), value.content)
                           for name, (critical, value) in held.items()}

    def check(self, moment: datetime, purpose: Purpose) -> None:
        """Check what holds for every certificate of a chain."""
        why = purpose.certificate.format(written(moment))
        require(moment >= self.begin, f"{why} was not valid yet: from {written(self.begin)} on")
        require(moment <= self.end, f"{why} had expired: it was valid until {written(self.end)}")
        for name, (critical, _) in self.extensions.items():
            known = name in (BASIC_CONSTRAINTS, KEY_USAGE, EXTENDED_USAGE)
            if (critical and not known) or name in purpose.others:
                raise NotChecked(f"a certificate's critical extension {name} is not understood")

    def may(self, bit: int) -> bool:
        """Say whether the key usage, if there is one, has this bit."""
        _, value = self.extensions.get(KEY_USAGE, (True, b"\x03\x02\x00\xff"))
        return bool(int.from_bytes(der(value, "03")[0].content[1:2], "big") >> (7 - bit) & 1)

    def usages(self) -> list[str]:
        """Return the purposes in the extended key usage."""
        _, value = self.extensions.get(EXTENDED_USAGE, (False, b"\x30\x00"))
        return [oid(der(each.raw, "06")[0]) for each in values(der(value, "30")[0].content)]

    def check_usages(self, purpose: Purpose) -> None:
        good = purpose.usages.intersection(self.usages() or [ANY_USAGE])
        require(good, f"a certificate in the chain is not for {purpose.words}")

    def check_issuer(self, below: int, purpose: Purpose) -> None:
        """Check that it may issue a certificate with `below` issuers beneath it."""
        _, value = self.extensions.get(BASIC_CONSTRAINTS, (True, b"\x30\x00"))
        authority, most = der(value, "30 ( ?01 ?02 )")
        may = flag(authority) and (not most.raw or below <= integer(most)) and self.may(5)
        require(may, "a certificate in the chain may not issue this one")
        self.check_usages(purpose)

    def issued(self, other: Certificate) -> bool:
        return self.subject == other.issuer and signature_verifies(
            self.spki, other.algorithm, "", other.signature, other.signed)

    def is_named(self, identifier: Der) -> bool:
        """Say whether a SignerIdentifier names it, by issuer and serial or by its key."""
        if identifier.tag == 0x30:
            issuer, serial = der(identifier.raw, "30 ( 30 02 )")
            return (issuer.raw, integer(serial)) == (self.issuer, self.serial)
        _, value = self.extensions.get(SUBJECT_KEY_ID, (False, b"\x04\x00"))
        return identifier.tag == 0x80 and der(value, "04")[0].content == identifier.content

def certificates(pem: bytes) -> list[Certificate]:
    """Read all certificates of a PEM file; whatever stands between them is a comment."""
    begin, end = (b"-----%s CERTIFICATE-----" % word for word in (b"BEGIN", b"END"))
    found = re.findall(begin + rb"([A-Za-z0-9+/=\s]*)" + end, pem)
    require(0 < len(found) == pem.count(begin) <= 200, "this is not a file of certificates in PEM")
    return [Certificate(from_base64(b"".join(each.split()).decode())) for each in found]

def named(name: bytes) -> str:
    """Return the organisation in a name, else its common name, as far as they are text."""
    parts: dict[str, str] = {}
    for part in values(values(name)[0].content):
        for each in values(part.content):
            kind, text = der(each.raw, "30 ( 06 * )")
            coded = {0x1E: "utf-16-be", 0x1C: "utf-32-be"}.get(text.tag, "utf-8")
            parts.setdefault(oid(kind), str(text.content, coded, "replace"))
    return repr(parts.get("2.5.4.10") or parts.get("2.5.4.3") or "nobody that has a name")

def check_stamper(signer: Certificate) -> None:
    """Check what the certificate of a timestamp's signer is for."""
    alone = signer.usages() == [TIMESTAMPING] and signer.extensions[EXTENDED_USAGE][0]
    require(alone, "the signer's certificate is not for timestamping alone, and critically")
    require(signer.may(0) or signer.may(1), "the signer's certificate is not for signatures")

def check_chain(signer: Certificate, known: list[Certificate], roots: list[Certificate],
                moment: datetime, purpose: Purpose) -> None:
    """Check that a chain leads from a signer's certificate to one of the roots."""
    trusted, tried = {root.raw for root in roots}, {signer.raw}

    def climb(here: Certificate, below: int) -> None:
        require(below < LONGEST_CHAIN, f"the chain has more than {LONGEST_CHAIN} certificates")
        here.check(moment, purpose)
        if here.raw in trusted:
            return None
        reason: Verdict = Invalid("no chain leads from the signer to a root that is trusted")
        for each in roots + known:
            try:
                if each.raw not in tried and each.issued(here):
                    tried.add(each.raw)
                    each.check_issuer(below, purpose)
                    return climb(each, below + 1)
            except Verdict as verdict:  # noqa: PERF203 - the next one may lead up
                reason = verdict
        raise reason

    signer.check_usages(purpose)
    climb(signer, 0)

def check_timestamp(response: bytes, data: bytes, chain: bytes,
                    roots: list[Certificate] | None) -> str:
    """Check a timestamp of `data` (a TimeStampResp), at its own time; return that as it is stated.

    `chain` is PEM with more certificates; what is self-issued in it is trusted if `roots` is None.
    """
    status, kind, version, _, inner, info, held, _, signers = der(
        response,
        "30 ( 30 ( 02 .. ) 30 ( 06 a0 ( 30 ( 02 31 30 ( 06 a0 ( 04 ) ) ?a0 ?a1 31 ( 30 ) ) ) ) )")
    good = integer(status) in (0, 1) and (oid(kind), oid(inner)) == (SIGNED_DATA, TIMESTAMP_INFO)
    require(good and integer(version) in (3, 4, 5), "the timestamp was not granted, or it is none")
    version, _, imprint, hashed, _, time = der(info.content, "30 ( 02 06 30 ( 30 04 ) 02 * .. )")
    good = integer(version) == 1 and DIGESTS.get(algorithm(imprint)) == "sha256"
    require(good and hashed.content == sha256(data), "the timestamp is of other bytes")
    others = certificates(chain)
    known = [Certificate(each.raw) for each in values(held.content)[:50]] + others
    roots = [each for each in others if each.subject == each.issuer] if roots is None else roots
    version, identifier, digest, attributes, kind, signature, _ = der(
        signers.raw, "30 ( 02 * 30 a0 30 04 ?a1 )")
    good = integer(version) == (1 if identifier.tag == 0x30 else 3)
    require(good, "the timestamp's signer is told of in another version")
    name, scheme, found = DIGESTS.get(algorithm(digest), ""), algorithm(kind), moment(time)
    if not name:
        raise NotChecked("the digest of the signature is not one this program checks")
    signer = next((each for each in known if each.is_named(identifier)), None)
    if signer is None:
        raise Invalid("the certificate that signed the timestamp is not here")
    check_attributes(attributes.content, hashlib.new(name, info.content).digest(), signer)
    signed = b"\x31" + attributes.raw[1:]  # a SET, as it is signed (RFC 5652, section 5.4)
    holds = signature_verifies(signer.spki, scheme, name, signature.content, signed)
    require(holds, "the timestamp's signature does not hold")
    check_stamper(signer)
    check_chain(signer, known, roots, found, STAMPS)
    return stated(time)

def check_attributes(attributes: bytes, digest: bytes, signer: Certificate) -> None:
    """Check what is signed: the kind and digest of the content, and which certificate signed."""
    held = by_name(attributes, "30 ( 06 31 )")
    found = {name: value.content for name, (value,) in held.items()}
    kind, signed = der(found.get(CONTENT_TYPE, b"") + found.get(MESSAGE_DIGEST, b""), "06 04")
    good = oid(kind) == TIMESTAMP_INFO and signed.content == digest
    require(good, "the signed attributes are of another kind of content, or have another digest")
    named = [(each, by) for each, by in SIGNED_BY.items() if each in found]
    require(named, "the signed attributes do not name the certificate")
    for attribute, default in named:
        # The first ESSCertID in SigningCertificate's first field (RFC 2634, RFC 5035).
        other, hashed = der(found[attribute], "30 ( 30 ( 30 ( ?30 04 .. ) .. ) .. )")
        by = DIGESTS.get(algorithm(other), "") if other.raw else default
        if not by:
            raise NotChecked("the certificate is named by a digest this program does not check")
        same = hashed.content == hashlib.new(by, signer.raw).digest()
        require(same, "the signed attributes name another certificate")

if __name__ == "__main__":
    sys.exit(main())
