"""The files of a pack, and which of them need others first.

The sums are signed; the manifest follows from signed files.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from hashlib import sha256
from importlib import resources

from app.evidence import bundle, prov
from app.evidence.bundle import Bundle
from app.evidence.pack import archive, readme
from app.evidence.pack.archive import Archive, Member, of_bytes
from app.evidence.pack.evidence import Evidence, Proven, SessionEvidence
from app.evidence.page.rendering import POLICY, environment, shown, shown_findings
from app.ledger import merkle
from app.ledger.notes import Checkpoint
from app.lib import canonical_json

ANCHOR = "records/anchor/v2"
FINDINGS = "records/findings/v1"
MANIFEST = "records/manifest/v2"
_PAGES = environment()
_SIGNED_LAST = ("SHA256SUMS", "SHA256SUMS.sig", "manifest.json")


def write(evidence: Evidence) -> Archive:
    """Return the evidence pack of a record: iterate it for the ZIP's bytes; `size` is how many.

    The same evidence gives the same bytes. PROV is written twice, once for its digest, and never
    held as a whole. Raises Inconsistent, or what the readers of its parts raise (all of them
    ValueErrors), for evidence that its reader would have to refuse.
    """
    checkpoint = evidence.check()
    read = bundle.read(evidence.bundle, evidence.agent_name)
    digest = sha256(evidence.bundle).hexdigest()
    record = read["record"]

    def provenance() -> Iterator[bytes]:
        return prov.write(read, sha256=digest, base_url=evidence.base_url)

    # The anchor holds the agent by its id, as the bundle has it, and the name it had then.
    agent = {"id": record["agent"]["id"], "name": record["agent"]["name"]}
    summed = [
        archive.measure("prov.json", provenance),
        of_bytes("anchor.json", _anchor(evidence, checkpoint, agent)),
        of_bytes("bundle.json", evidence.bundle),
        of_bytes("bundle.sig", evidence.signature),
        of_bytes("record.tlog-proof", evidence.tlog_proof),
        of_bytes("record.html", _page(evidence, checkpoint, read, digest)),
        *(of_bytes(name, data) for name, data in evidence.further.items()),
    ]
    told = {"schema": MANIFEST, "record_id": record["id"], "agent": agent}
    write_readme = partial(readme.of_record, evidence, checkpoint, read)
    return _sealed(evidence, checkpoint, summed, told, write_readme)


def write_session(evidence: SessionEvidence) -> Archive:
    """Return the evidence pack of a session, as `write` does that of a record.

    Its large files are read twice and never held.
    """
    checkpoint = evidence.check()
    said = json.loads(evidence.statement)
    session, agent = said["session"], said["session"]["agent"]
    agent = {"id": agent["id"], "name": agent["name"]}
    told = {"schema": MANIFEST, "session_id": session["id"], "agent": agent}
    keys = canonical_json.dumps({"keys": [each.jwk for each in evidence.keys]})
    # Which bundles do not open is known once they were read, and `records` tells it.
    summed = [
        archive.measure("bundles.ndjson", evidence.bundles),
        archive.measure("records.ndjson", evidence.records),
        archive.measure("session-digests.txt", evidence.digests),
        archive.measure("findings.ndjson", evidence.findings),
        of_bytes("anchor.json", _anchor(evidence, checkpoint, agent)),
        of_bytes("keys.json", keys),
        of_bytes("session-statement.json", evidence.statement),
        of_bytes("session-statement.sig", evidence.signature),
        of_bytes("session.tlog-proof", evidence.tlog_proof),
    ]
    write_readme = partial(readme.of_session, evidence, checkpoint, said)
    return _sealed(evidence, checkpoint, summed, told, write_readme)


def _sealed(
    evidence: Proven,
    checkpoint: Checkpoint,
    own: Iterable[Member],
    told: Mapping[str, object],
    write_readme: Callable[[Iterable[str]], bytes],
) -> Archive:
    """Return the archive of these files and those that every pack has: sums, signed, a manifest.

    `write_readme` is told their names.
    """
    summed = [
        *own,
        of_bytes("checkpoint", evidence.checkpoint),
        of_bytes("pack-key.pem", evidence.pack_key.public.pem),
        of_bytes("public-key.pem", evidence.public_key.pem),
        of_bytes("verify.py", verifier_source()),
    ]
    if evidence.timestamp is not None:
        summed.append(of_bytes("checkpoint.tsr", evidence.timestamp.response))
        summed.append(of_bytes("tsa-chain.pem", evidence.timestamp.chain.encode()))
    if evidence.chain is not None:
        summed.append(of_bytes("signing-chain.pem", evidence.chain.pem))
    names = [*_SIGNED_LAST, *(each.name for each in summed)]
    summed.append(of_bytes("README.txt", write_readme(names)))
    ordered = sorted(summed, key=lambda each: each.name)
    lines = "".join(f"{each.sha256}  {each.name}\n" for each in ordered).encode("ascii")
    signature = evidence.pack_key.sign(lines)
    members = [*summed, of_bytes("SHA256SUMS", lines), of_bytes("SHA256SUMS.sig", signature)]
    listed = {
        **told,
        "release": evidence.release,
        "pack_key_id": evidence.pack_key.public.id,
        "checkpoint": {
            "origin": checkpoint.origin,
            "size": checkpoint.size,
            "root": checkpoint.root.hex(),
        },
        "files": {each.name: {"sha256": each.sha256, "size": each.size} for each in members},
    }
    return Archive([*members, of_bytes("manifest.json", canonical_json.dumps(listed))])


def findings_file(record_id: str, listed: Sequence[Mapping[str, object]], total: int) -> bytes:
    """Return `findings.json`: a record's first findings as their GET answers; all are `total`."""
    file = {"schema": FINDINGS, "record_id": record_id, "total": total, "data": listed}
    return canonical_json.dumps(file)


@cache
def verifier_source() -> bytes:
    """Return the bytes of `verify.py`, as they go into every pack of this release."""
    return resources.files("app.evidence").joinpath("verify.py").read_bytes()


def _page(evidence: Evidence, checkpoint: Checkpoint, read: Bundle, digest: str) -> bytes:
    """Return `record.html`: the share page of the bundle, with the pack's own facts."""
    file = json.loads(evidence.further.get("findings.json", b'{"data":[],"total":0}'))
    place = evidence.further.get("session-proof.json")
    record, inside, findings = read["record"], shown(read), shown_findings(file["data"])
    page = _PAGES.get_template("shared/record.html").render(
        record={
            **{name: record[name] for name in ("id", "title", "kind", "principal", "labels")},
            "agent_id": record["agent"]["id"],
            "session_id": record["session"]["id"],
            "bundle": {
                "key_id": read["key_id"],
                "sha256": digest,
                "size": len(evidence.bundle),
                "signature": b64encode(evidence.signature).decode(),
            },
            "log": {"index": evidence.leaf_index},
        },
        agent={"version": "", "external_id": "", **inside.agent},
        occurred_at=datetime.fromisoformat(record["occurred_at"] or record["created_at"]),
        created_at=datetime.fromisoformat(record["created_at"]),
        inside=inside,
        findings=findings,
        more_findings=file["total"] - len(findings),
        links=None,
        policy=f"{POLICY}; form-action 'none'",
        place=None if place is None else json.loads(place),
        origin=checkpoint.origin,
        anchored_by=evidence.anchored_by,
        chain=evidence.chain,
        release=evidence.release,
        base_url=evidence.base_url,
    )
    return page.encode()


def _anchor(evidence: Proven, checkpoint: Checkpoint, agent: dict[str, str]) -> bytes:
    """Return `anchor.json`: the place in the log, with timestamps and cosignatures."""
    leaf, stamp = evidence.leaf_data, evidence.timestamp
    files = {"response": "checkpoint.tsr", "chain": "tsa-chain.pem"}
    return canonical_json.dumps(
        {
            "schema": ANCHOR,
            "release": evidence.release,
            "agent": agent,
            "anchored_by": evidence.anchored_by,
            "vkey": str(evidence.log_key),
            "log_proof": {
                "leaf_index": evidence.leaf_index,
                "leaf_data": b64encode(leaf).decode("ascii"),
                "leaf_hash": merkle.leaf_hash(leaf).hex(),
                "tree_size": checkpoint.size,
                "inclusion": [each.hex() for each in evidence.path],
                "checkpoint": evidence.checkpoint.decode("utf-8"),
            },
            "cosignatures": [str(each) for each in evidence.cosignatures],
            # Its time has the digits that were sent.
            "timestamp": None if stamp is None else {"gen_time": stamp.time, **files},
        }
    )
