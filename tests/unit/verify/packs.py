"""Evidence to make packs of: a log with a few leaves, a witness, and keys that never change."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.evidence import bundle, statement
from app.evidence.bundle import Approval, Record
from app.evidence.pack import Evidence, SessionEvidence, findings_file
from app.ledger import leaves, merkle
from app.ledger.notes import COSIGNATURE, Checkpoint, Signature, Signer, VerifierKey, cosigned_bytes
from app.lib import canonical_json
from app.lib.crypto.signing import SigningKey

BASE_URL = "https://records.example"
ORIGIN = "log.example/records"
RELEASE = "1.2.3"
AGENT = "Prüfer 🏦"

KEY = SigningKey(bytes(range(32)))
NEXT_KEY = SigningKey(bytes(range(1, 33)))
LOG = Signer(ORIGIN, Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34))))
OTHER_LOG = Signer(
    "other.example/log", Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35)))
).verifier_key
SECONDS = 1_770_000_000


def private_key(seed: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)


def witness_key(number: int) -> VerifierKey:
    public = private_key(number).public_key().public_bytes_raw()
    return VerifierKey.ed25519(f"witness.example/w{number}", public, COSIGNATURE)


def cosign(number: int, text: str, seconds: int = SECONDS) -> Signature:
    key = witness_key(number)
    signed = private_key(number).sign(cosigned_bytes(text, seconds))
    return Signature(key.name, key.key_hash, seconds.to_bytes(8, "big") + signed)


def record(number: int = 7) -> Record:
    return {
        "id": f"rec_{number:032x}",
        "tenant_id": f"ten_{1:032x}",
        "session": {"id": f"ses_{2:032x}", "external_id": "run 7"},
        "agent": {
            "id": f"agt_{3:032x}",
            "name": AGENT,
            "external_id": "urn:agents:pruefer",
            "version": "2.4.1",
        },
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "models": ["m-4"],
        "principal": "ana@example.com",
        "kind": "decision",
        "title": "Überweisung geprüft 🏦",
        "labels": {"region": "eu", "\U00010000": "behind \ue000", "\ue000": "before"},
        "occurred_at": "2026-01-31T11:59:58.000000Z",
        "created_at": "2026-01-31T12:00:00.123456Z",
    }


STEP: Mapping[str, Any] = {
    "name": "look up",
    "kind": "tool",
    "started_at": "2026-01-31T11:59:58Z",
    "ended_at": "2026-01-31T11:59:59Z",
    "status": "ok",
    "attributes": {"score": 0.1, "tiny": 1e-7, "big": 1e21, "n": 9007199254740991},
    "inputs": {"iban": "DE00"},
    "outputs": ["verdict"],
}
CONTENT = {"amount": 12.5, "text": 'a "quoted" \\ \b\f\n\r\t\x00\x7f\u2028 text', "none": None}


APPROVAL: Approval = {
    "approved_by": "ana@example.com",
    "at": "2026-01-31T11:59:59.000000Z",
    "decision": "approved",
    "note": "within the limit",
}


def bundle_of(number: int = 7, *, key: SigningKey = KEY, content: Any = CONTENT) -> bytes:
    """A bundle, the same each time: tests are collected in several processes."""
    parts = (record(number), content, [STEP], [APPROVAL])
    raw = bundle.write(*parts, key_id=key.public.id)
    return canonical_json.dumps({**bundle.read(raw), "nonce": "A" * 43})


def bundle_v1() -> bytes:
    """The same as a bundle of version 1, whose agent has no name in it."""
    read: dict[str, Any] = dict(bundle.read(bundle_of()))
    said = dict(read["record"])
    said["session_id"] = said.pop("session")["id"]
    said["agent_id"] = said.pop("agent")["id"]
    del read["approvals"], said["trace_id"], said["models"]
    return canonical_json.dumps({**read, "schema": "records/bundle/v1", "record": said})


def finding(number: int, record_id: str, **other: Any) -> dict[str, Any]:
    """A finding that a rule made of the record."""
    made: dict[str, Any] = {
        "id": f"fnd_{number:032x}",
        "record_id": record_id,
        "session_id": f"ses_{2:032x}",
        "agent_id": f"agt_{3:032x}",
        "principal": "ana@example.com",
        "rule": "überweisung.limit",
        "severity": "high",
        "source": "rule",
        "title": "Über dem Limit",
        "detail": None,
        "data": {"rule": {"id": f"rul_{4:032x}", "version": 3}},
        "created_at": "2026-01-31T12:00:00.123456Z",
    }
    return made | other


PLACE, HELD = 2, 7


def statement_of(digests: Sequence[bytes], *, key: SigningKey = KEY, **other: Any) -> bytes:
    """The statement of the session that these records are of, the same each time."""
    said = record()
    times = ("2026-01-31T12:00:00.000000Z", "2026-01-31T12:00:00.123456Z")
    raw = statement.write(
        statement.Session(
            id=said["session"]["id"],
            external_id="run 7",
            agent=said["agent"],
            principal=said["principal"],
            opened_at="2026-01-31T11:59:00.000000Z",
            completed_at="2026-01-31T12:00:00.123456Z",
            outcome="succeeded",
        ),
        records=len(digests),
        root=merkle.root(map(merkle.leaf_hash, digests)),
        times=times if digests else None,
        findings={"high": 1, "low": 0},
        key_id=key.public.id,
    )
    return canonical_json.dumps({**json.loads(raw), "nonce": "B" * 43, **other})


def session_files(raw: bytes, key: SigningKey = KEY, **other: Any) -> dict[str, bytes]:
    """What a pack has of the sealed session of its record, the third of seven."""
    digests = [sha256(b"%d" % number + raw).digest() for number in range(HELD)]
    digests[PLACE] = sha256(raw).digest()
    said = statement_of(digests, key=key, **other)
    path = merkle.path_within(b"".join(map(merkle.leaf_hash, digests)), PLACE)
    return {
        "session-proof.json": statement.proof(PLACE, HELD, path),
        "session-statement.json": said,
        "session-statement.sig": key.sign(said),
    }


def further(raw: bytes, key: SigningKey) -> dict[str, bytes]:
    """The further files that each of these packs has."""
    record_id = bundle.read(raw)["record"]["id"]
    findings = findings_file(record_id, [finding(1, record_id)], 1)
    return {"findings.json": findings, **session_files(raw, key)}


def evidence(
    raw: bytes | None = None,
    *,
    key: SigningKey = KEY,
    pack_key: SigningKey | None = None,
    log: Signer = LOG,
    others: int = 5,
    index: int = 3,
    witnesses: Sequence[int] = (),
    release: str = RELEASE,
    files: Mapping[str, bytes] | None = None,
) -> Evidence:
    """A record among `others` in a log whose checkpoint these witnesses cosigned.

    `files` are its further files, by default all that each of these packs has.
    """
    raw = bundle_of(key=key) if raw is None else raw
    return Evidence(
        bundle=raw,
        signature=key.sign(raw),
        public_key=key.public,
        pack_key=pack_key or key,
        base_url=BASE_URL,
        release=release,
        agent_name=AGENT,
        further=further(raw, key) if files is None else files,
        **in_log(leaves.record(sha256(raw).digest()), log, others, index, witnesses),
    )


def in_log(
    leaf: bytes,
    log: Signer = LOG,
    others: int = 5,
    index: int = 3,
    witnesses: Sequence[int] = (),
) -> dict[str, Any]:
    """A leaf's proof, among `others` in a log, with the log's key and these cosignatures."""
    hashes = [merkle.leaf_hash(b"leaf %d" % number) for number in range(others)]
    hashes.insert(index, merkle.leaf_hash(leaf))
    checkpoint = Checkpoint(log.name, len(hashes), merkle.root(hashes))
    path = merkle.inclusion_proof(
        index,
        len(hashes),
        lambda level, number: merkle.root(hashes[number << level : (number + 1) << level]),
    )
    note = checkpoint.sign(log)
    return {
        "log_key": log.verifier_key,
        "checkpoint": bytes(note),
        "leaf_index": index,
        "path": path,
        "cosignatures": [cosign(number, note.text) for number in witnesses],
    }


def session_evidence(count: int = 7, expired: Sequence[int] = (1,)) -> SessionEvidence:
    """A sealed session whose statement is in a log of six; bundles of `expired` are gone."""
    raws = [bundle_of(number) for number in range(1, count + 1)]
    digests = [sha256(raw).digest() for raw in raws]
    said = statement_of(digests)
    here = [raw for place, raw in enumerate(raws) if place not in expired]
    lines = [
        statement.record_line(
            statement.Status.EXPIRED if place in expired else statement.Status.PRESENT,
            digest,
            record(place + 1)["id"],
            KEY.public.id,
            KEY.sign(raws[place]),
            place,
        )
        for place, digest in enumerate(digests)
    ]
    found = canonical_json.dumps(finding(1, record(1)["id"])) + b"\n"
    return SessionEvidence(
        statement=said,
        keys=[KEY.public],
        digests=lambda: ["".join(f"{each.hex()}\n" for each in digests).encode()],
        records=lambda: lines,
        bundles=lambda: [raw + b"\n" for raw in here],
        findings=lambda: [found],
        signature=KEY.sign(said),
        public_key=KEY.public,
        pack_key=KEY,
        base_url=BASE_URL,
        release=RELEASE,
        **in_log(leaves.session(sha256(said).digest()), witnesses=[9, 10]),
    )
