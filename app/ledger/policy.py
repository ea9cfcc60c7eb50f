"""Policies (C2SP tlog-policy): witnesses and their quorum.

A policy is octets: names are compared byte for byte. Its logs are read and not kept: the service
has one, and knows its key. Keys of types that are not checked here count for nothing.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.ledger.notes import COSIGNATURE, ED25519, Malformed, VerifierKey

NONE = "none"
"""The quorum of a policy that needs no cosignature."""

MAX_BYTES = 262_144
MAX_ENTRIES = 256
"""How many logs, witnesses and groups a policy may have, each; 32 are asked for."""

_FORBIDDEN = re.compile(rb"[^\t\n\x20-\x7e\x80-\xff]")
_ITEM = re.compile(r"[^ \t]+")
_THRESHOLD = re.compile(r"[1-9][0-9]{0,5}")


@dataclass(frozen=True)
class Witness:
    """A witness, by the name that it has within the policy only; `url` is its submission prefix."""

    name: str
    key: VerifierKey
    url: str | None


@dataclass(frozen=True)
class Group:
    """Witnesses and groups of which `threshold` are needed."""

    name: str
    threshold: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Policy:
    """A policy as it was read; groups stand behind what they are made of.

    `unchecked` tells of each line whose key is of a type that is not checked here. Cosignatures by
    such a witness are kept, and never count.
    """

    witnesses: tuple[Witness, ...]
    groups: tuple[Group, ...]
    quorum: str
    unchecked: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> "Policy":
        """Read a policy. Raises Malformed, naming the line."""
        if len(data) > MAX_BYTES or _FORBIDDEN.search(data):
            raise Malformed(f"A policy is text of up to {MAX_BYTES} bytes, without controls.")
        if not data.endswith(b"\n"):
            raise Malformed("Each line of a policy ends with a newline, the last one too.")
        reader = _Reader()
        for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
            reader.line = number
            try:
                reader.take(_ITEM.findall(line))
            except Malformed as error:
                raise Malformed(f"Line {number} of the policy: {error}") from None
        if reader.quorum is None:
            raise Malformed("A policy has a line `quorum <name>`, or `quorum none`.")
        witnesses, groups = tuple(reader.witnesses), tuple(reader.groups)
        return cls(witnesses, groups, reader.quorum, tuple(reader.unchecked))

    def is_met_by(self, keys: Iterable[VerifierKey]) -> bool:
        """Say whether cosignatures by these keys make the quorum."""
        signed = set(keys)
        met = {NONE} | {each.name for each in self.witnesses if each.key in signed}
        for group in self.groups:
            if len(met.intersection(group.members)) >= group.threshold:
                met.add(group.name)
        return self.quorum in met


@dataclass
class _Reader:
    """The declarations of the lines read so far, and the number of the one that is read."""

    line: int = 0
    unchecked: list[str] = field(default_factory=list)
    logs: list[VerifierKey] = field(default_factory=list)
    witnesses: list[Witness] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    quorum: str | None = None
    names: set[str] = field(default_factory=set)
    grouped: set[str] = field(default_factory=set)

    def take(self, items: Sequence[str]) -> None:
        match items:
            case []:
                pass
            case [first, *_] if first.startswith("#"):
                pass
            case ["log", key, *url] if len(url) < 2:
                log = VerifierKey.parse(key)
                if log.algorithm == COSIGNATURE:
                    raise Malformed("The key of a log is Ed25519 (algorithm 01), no witness's.")
                self._note(f"log {log.name}", log)
                _check_new(log, self.logs)
                self.logs.append(log)
            case ["witness", name, key, *url] if len(url) < 2:
                self._witness(name, key, url)
            case ["group", name, threshold, *members] if members:
                self._group(name, threshold, members)
            case ["quorum", name]:
                if self.quorum is not None:
                    raise Malformed("A policy has one quorum.")
                if name != NONE and name not in self.names:
                    raise Malformed("The quorum is a witness or group from before it, or `none`.")
                self.quorum = name
            case _:
                raise Malformed("Not a log, witness, group or quorum line.")

    def _witness(self, name: str, text: str, url: list[str]) -> None:
        key = VerifierKey.parse(text)
        if key.algorithm == ED25519:
            raise Malformed("The key of a witness is for cosignatures (algorithm 04), not 01.")
        self._note(f"witness {name}", key)
        self._define(name)
        _check_new(key, [each.key for each in self.witnesses])
        self.witnesses.append(Witness(name, key, url[0] if url else None))

    def _group(self, name: str, threshold: str, members: list[str]) -> None:
        for member in members:
            if member not in self.names:
                raise Malformed("A group is made of witnesses and groups from lines before it.")
            if member in self.grouped:
                raise Malformed("A name is a member of one group at most, and once.")
            self.grouped.add(member)
        self._define(name)
        needed = {"any": 1, "all": len(members)}.get(threshold)
        if needed is None and _THRESHOLD.fullmatch(threshold):
            needed = int(threshold)
        if needed is None or needed > len(members):
            raise Malformed("A group needs `any`, `all`, or 1 up to all of its members.")
        if len(self.groups) == MAX_ENTRIES:
            raise Malformed(f"A policy has up to {MAX_ENTRIES} groups.")
        self.groups.append(Group(name, needed, tuple(members)))

    def _note(self, what: str, key: VerifierKey) -> None:
        if not key.checkable:
            self.unchecked.append(
                f"line {self.line}: {what} has a key of the type {key.algorithm:02x}"
            )

    def _define(self, name: str) -> None:
        if name == NONE or name in self.names:
            raise Malformed("This name is taken.")
        self.names.add(name)


def _check_new(key: VerifierKey, others: Sequence[VerifierKey]) -> None:
    if len(others) == MAX_ENTRIES:
        raise Malformed(f"A policy has up to {MAX_ENTRIES} logs, and as many witnesses.")
    if any(each.public_key == key.public_key for each in others):
        raise Malformed("This public key is on another line already.")
