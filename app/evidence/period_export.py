"""Lines of a period export: the log's leaves between two sizes, and what is signed of them.

A record has a line of its own; others are in full, or hashes of subtrees: so the lines lead to the
root of the log's checkpoint. A `Draft` can be stored between two lines. docs/formats.md has the
members.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from app.ledger import merkle
from app.ledger.merkle import Frontier, subtrees
from app.lib import canonical_json

SCHEMA = "records/export/v1"
MOST_NAMES = 1000
"""Kinds and agents that the totals name; what is beyond is counted together."""

_AFTER = 16


class Listed(NamedTuple):
    """A record as its line has it; ids and times are texts, `content` says if its bundle is kept.

    `logged_at` is when the first checkpoint that covers its leaf was published.
    """

    id: str
    session_id: str
    agent_id: str
    kind: str
    created_at: str
    occurred_at: str
    bundle_sha256: str
    content: str
    logged_at: str


@dataclass
class Totals:
    """What the statement counts, by the lines' order of appearance."""

    records: int = 0
    expired: int = 0
    first_at: str | None = None
    last_at: str | None = None
    by_kind: dict[str, int] = field(default_factory=dict)
    by_agent: dict[str, int] = field(default_factory=dict)
    by_day: dict[str, int] = field(default_factory=dict)
    sessions: int = 0
    outside: int = 0
    others: dict[str, int] = field(default_factory=dict)
    folded: int = 0

    def add(self, record: Listed) -> None:
        """Count a record."""
        at = record.created_at
        self.records += 1
        self.expired += record.content == "expired"
        self.first_at = min(self.first_at or at, at)
        self.last_at = max(self.last_at or at, at)
        _count(self.by_kind, record.kind)
        _count(self.by_agent, record.agent_id)
        self.by_day[at[:10]] = self.by_day.get(at[:10], 0) + 1

    def answer(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return it as the statement has it; `names` are what the agents are called."""
        agents = [
            {"agent_id": each or None, "name": names.get(each), "records": count}
            for each, count in self.by_agent.items()
        ]
        leaves = {
            "records": self.records,
            "sessions": self.sessions,
            "outside": self.outside,
            "folded": self.folded,
            "others": [{"type": name, "leaves": self.others[name]} for name in sorted(self.others)],
        }
        return {
            "records": self.records,
            "expired": self.expired,
            "first_at": self.first_at,
            "last_at": self.last_at,
            "by_kind": [{"kind": k or None, "records": n} for k, n in self.by_kind.items()],
            "by_agent": agents,
            "by_day": [{"day": day, "records": self.by_day[day]} for day in sorted(self.by_day)],
            "leaves": leaves,
        }


def _count(counts: dict[str, int], name: str) -> None:
    """Count a name, or what has no name of its own any more under the empty one."""
    key = name if name in counts or len(counts) < MOST_NAMES else ""
    counts[key] = counts.get(key, 0) + 1


class Draft:
    """An export as far as it is written: its bytes have gone elsewhere, this is what follows needs.

    `log` is the log's tree up to the last line, `listed` that over the listed digests, `chain` the
    hash of all lines, and `waiting` the first leaf that no line has yet.
    """

    def __init__(self, log: Frontier) -> None:
        """Begin behind the leaves of `log`."""
        self.log = log
        self.listed = Frontier()
        self.totals = Totals()
        self.chain = b""
        self.lines = 0

    @property
    def at(self) -> int:
        """The next leaf that a line has to be about."""
        return self.log.size

    def header(self, about: Mapping[str, Any], published_at: str | None) -> bytes:
        """Write the first line: what is exported, and the tree before its first leaf."""
        nodes = [each.hex() for each in self.log.hashes]
        begin = {"size": self.log.size, "nodes": nodes, "published_at": published_at}
        return self._line({"type": "header", "schema": SCHEMA, **about, "begin": begin})

    def record(self, record: Listed, leaf_hash: bytes) -> bytes:
        """Write the line of the record whose leaf is next."""
        line = self._leaf("record", leaf_hash, record._asdict())
        self.listed.append(merkle.leaf_hash(bytes.fromhex(record.bundle_sha256)))
        self.totals.add(record)
        return line

    def session(self, session_id: str, statement: bytes, leaf_hash: bytes) -> bytes:
        """Write the line of a session of the tenant whose statement's leaf is next."""
        self.totals.sessions += 1
        about = {"session_id": session_id, "statement": json.loads(statement)}
        return self._leaf("session", leaf_hash, about)

    def other(self, leaf: bytes, outside: Mapping[str, str] | None) -> bytes:
        """Write another leaf in full; `outside` names a record of the tenant's own."""
        data = json.loads(leaf)
        if outside is None:
            kind = str(data["type"])
            self.totals.others[kind] = self.totals.others.get(kind, 0) + 1
        else:
            self.totals.outside += 1
        about = {"leaf": data, **({} if outside is None else {"outside": outside})}
        return self._leaf("leaf", merkle.leaf_hash(leaf), about)

    def fold(self, end: int, read: merkle.ReadHash) -> bytes:
        """Write all leaves up to `end` as the hashes of complete subtrees."""
        start, nodes = self.at, []
        for level, number in subtrees(start, end):
            node = read(level, number)
            self.log.append(node, level)
            nodes.append(node.hex())
        self.totals.folded += end - start
        return self._line({"type": "fold", "index": start, "end": end, "nodes": nodes})

    def statement(self, about: Mapping[str, Any], names: Mapping[str, str]) -> bytes:
        """Return what is signed: all of it follows from the lines, but names and `about`."""
        return canonical_json.dumps(
            {
                "schema": SCHEMA,
                **about,
                **self.totals.answer(names),
                "lines": self.lines,
                "chain": self.chain.hex(),
                "root": self.listed.root.hex(),
            }
        )

    def trailer(self, statement: bytes, signature: bytes, beside: Mapping[str, Any]) -> bytes:
        """Write the last line: the statement, its signature, and the log's evidence."""
        signed = {"statement": json.loads(statement), "signature": b64encode(signature).decode()}
        return self._line({"type": "statement", **signed, **beside})

    def _leaf(self, kind: str, leaf_hash: bytes, about: Mapping[str, Any]) -> bytes:
        line = self._line({"type": kind, "index": self.at, **about})
        self.log.append(leaf_hash)
        return line

    def _line(self, members: dict[str, Any]) -> bytes:
        if self.chain:
            members["after"] = self.chain.hex()[:_AFTER]
        line = canonical_json.dumps(members)
        self.chain = sha256(self.chain + line).digest()
        self.lines += 1
        return line + b"\n"

    def dump(self) -> dict[str, Any]:
        """Return it as JSON, for `load`."""
        return {
            "log": [self.log.size, *(each.hex() for each in self.log.hashes)],
            "listed": [self.listed.size, *(each.hex() for each in self.listed.hashes)],
            "totals": vars(self.totals),
            "chain": self.chain.hex(),
            "lines": self.lines,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Draft":
        """Return the draft that `dump` was called of."""
        found = cls(_frontier(state["log"]))
        found.listed = _frontier(state["listed"])
        found.totals = Totals(**state["totals"])
        found.chain = bytes.fromhex(state["chain"])
        found.lines = state["lines"]
        return found


def _frontier(state: Sequence[Any]) -> Frontier:
    return Frontier(state[0], map(bytes.fromhex, state[1:]))


def beside(
    *,
    public_key: bytes,
    vkey: str,
    checkpoint: bytes,
    cosignatures: Iterable[str],
    timestamp: tuple[str, bytes, str] | None,
) -> dict[str, Any]:
    """Return what stands in the last line beside the statement: who vouches for it and the log.

    `timestamp` is its time as the authority wrote it, the response and the certificates.
    """
    stamp = None
    if timestamp is not None:
        gen_time, response, chain = timestamp
        stamp = {
            "gen_time": gen_time,
            "response": b64encode(response).decode(),
            "chain": chain,
        }
    return {
        "public_key": public_key.decode(),
        "vkey": vkey,
        "checkpoint": checkpoint.decode(),
        "cosignatures": list(cosignatures),
        "timestamp": stamp,
    }
