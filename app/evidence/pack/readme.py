"""`README.txt`: what a pack holds and how an auditor verifies it."""

import math
import textwrap
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.evidence.bundle import Approval, Bundle
from app.evidence.pack.evidence import Evidence, Proven, SessionEvidence
from app.ledger.notes import Checkpoint
from app.lib.text_sanitizer import one_line, visible

_TEXT = """\
{title}
{underline}

{intro}

{facts}


What is in here
---------------

{files}


How to check it
---------------

A script cannot vouch for itself, nor can a pack for its keys. Take all three from the service, not
from whoever gave you the pack:

    curl -fsS -o verify.py {base_url}/verify.py
    curl -fsS -o keys.json {base_url}/.well-known/jwks.json
    (echo "log $(curl -fsS {base_url}/v1/log/key)"; echo "quorum none") > policy

{how}


What this does not prove
------------------------

{limits}
"""

_INTRO = """\
This folder shows what an AI agent was recorded to have done, who signed that record, and that its
hash stands in a public, append-only log. Everything can be checked without the service that made
it, offline."""

_INTRO_OF_SESSION = """\
This folder shows everything that was recorded in one run of an AI agent. When the run ended, the
service signed how many records it had, and a hash over all of them, and put the hash of that
statement into a public, append-only log. Everything can be checked without the service, offline."""

_FILES = {
    "bundle.json": "the record: exactly the bytes that were signed",
    "bundle.sig": "the Ed25519 signature over them, 64 bytes",
    "public-key.pem": "the key that signed the bundle; its id is {key}",
    "signing-chain.pem": "the certificates by which {authority} says whose the key public-key.pem"
    " is",
    "prov.json": "the same record as W3C PROV-JSON, made from the bundle",
    "anchor.json": "the record's place in the log, the log's key, timestamps and cosignatures",
    "record.tlog-proof": "the same proof in the form of C2SP tlog-proof, with the cosignatures",
    "checkpoint": "the log's signed statement of its size and root: {size} leaves, of the log"
    " {origin}",
    "checkpoint.tsr": "an RFC 3161 timestamp of the file checkpoint: {stamped}",
    "tsa-chain.pem": "the certificates of the authority that made it, its root included",
    "findings.json": "what rules or people found in the record, as it stood when this pack was"
    " made. Findings are not in the log: the signature of pack-key.pem over SHA256SUMS is all that"
    " speaks for them, and for there being no others then",
    "session-key.pem": "the key that signed session-statement.json: not the bundle's",
    "session-proof.json": "the record's place in its session, and the path of the SHA-256 of"
    " bundle.json to the root in session-statement.json",
    "session-statement.json": "how many records the session held when it ended, signed as the"
    " bundle is. The session's own pack has all of them, and the statement's place in the log",
    "session-statement.sig": "its signature",
    "pack-key.pem": "the key that signed this pack; its id is {pack_key}{same_key}",
    "record.html": "the record as a page to read in any browser, offline; it is a rendering:"
    " bundle.json is what is signed",
    "SHA256SUMS": "the SHA-256 of every file above, of README.txt and of verify.py",
    "SHA256SUMS.sig": "the signature of pack-key.pem over SHA256SUMS",
    "manifest.json": "every file but itself, with size and SHA-256",
    "verify.py": "checks all of this; Python 3.8 or newer, nothing else",
}
_FILES_OF_SESSION = {
    "session-statement.json": "the statement: exactly the bytes that were signed",
    "session-statement.sig": "the Ed25519 signature over them, 64 bytes",
    "public-key.pem": "the key that signed the statement; its id is {key}",
    "session-digests.txt": "the SHA-256 of each record's bundle, in order: the statement's root is"
    " over these (RFC 9162; a leaf's data are the 32 bytes of a digest)",
    "records.ndjson": "a line for each of them: whether its bundle is here, its signature, its leaf"
    " in the log; then a line for what was found beside them",
    "bundles.ndjson": "the bundles that are here, in that order, each as it was signed, and a"
    " newline. What has expired is not here: its digest proves that it was",
    "findings.ndjson": "the session's findings, as they stood when this pack was made",
    "keys.json": "the keys that signed the bundles",
    "anchor.json": "the statement's place in the log, the log's key, timestamps, cosignatures",
    "session.tlog-proof": _FILES["record.tlog-proof"],
}

_HOW = """\
Compare the SHA-256 of verify.py with the one that was published for its release
(app/evidence/verify.py.sha256 in the source), and the keys with what you kept from before or others
have. Then, with the ZIP:

    python3 -I -S verify.py PACK.zip --key keys.json --policy policy{options} --strict

keys.json   the service's public keys, or one that you have as PEM; --key may be given again
policy      a C2SP tlog-policy: the key of the log {origin} (if that
            log has ended, its vkey in keys.json), and the witnesses that you need, here none
{root_lines}
Without these it says VALID AGAINST THE PACK'S OWN KEYS: the pack agrees with itself, and
whoever made it could have made the keys too.

If it says that another program made the ZIP, unzip that, and give the folder in its place.

Without verify.py, in the unzipped folder (OpenSSL 3):

    sha256sum -c SHA256SUMS

    openssl pkeyutl -verify -pubin -inkey pack-key.pem -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig

    openssl pkeyutl -verify -pubin -inkey public-key.pem -rawin -in bundle.json -sigfile bundle.sig
{timestamp_commands}
The id of a key is the first 16 digits of:

    openssl pkey -pubin -in public-key.pem -outform DER | sha256sum


That the log has the bundle can be checked by hand too, with SHA-256 alone (RFC 9162, section
2.1.3.2): from the hash of the record's leaf up to the root, which is the third line of the file
checkpoint. Each node is hashed from two others, one of which stands in record.tlog-proof. Look
before you run this that each line h=$(node … has "$h" on one side: so no other bytes come to that
root.

    sum() {{ openssl dgst -sha256 -binary | openssl base64 -A; }}
    bytes() {{ printf %s "$1" | openssl base64 -A -d; }}
    node() {{ {{ printf '\\001'; bytes "$1"; bytes "$2"; }} | sum; }}
    bundle=$(sha256sum < bundle.json | cut -c 1-64)
    h=$(printf '\\000{{"bundle_sha256":"%s","type":"record"}}' "$bundle" | sum)
{steps}    root=$(sed -n 3p checkpoint)
    test "$h" = "$root" && echo "the log has the bundle" || echo "NOT in this log: $h"

And that the log signed this root (vkey is what stands behind "log" in the file policy: compare it;
three files are written beside this folder, none into it):

    vkey='{vkey}'
    printf '\\060\\052\\060\\005\\006\\003\\053\\145\\160\\003\\041\\000' > ../log-key.der
    printf %s "$vkey" | cut -d + -f 3- | openssl base64 -A -d | tail -c 32 >> ../log-key.der
    head -n 3 checkpoint > ../log.txt
    tail -n 1 checkpoint | cut -d ' ' -f 3 | openssl base64 -A -d | tail -c 64 > ../log.sig
    openssl pkeyutl -verify -pubin -keyform DER -inkey ../log-key.der -rawin \\
        -in ../log.txt -sigfile ../log.sig

Cosignatures, and that prov.json is about this bundle, take verify.py or another program."""

_HOW_OF_SESSION = """\
    python3 -I -S verify.py PACK.zip --key keys.json --policy policy{options} --strict

It names each record that was sealed and is not here, each that was added, and each that was
changed. By hand, with OpenSSL 3, record 5 of those whose bundles are here (sed counts from 1):

    openssl pkeyutl -verify -pubin -inkey public-key.pem -rawin -in session-statement.json \\
        -sigfile session-statement.sig
    sed -n 5p bundles.ndjson | head -c -1 | sha256sum
{timestamp_commands}"""

_LIMITS = """\
- That what the record says is true. It shows what was reported to the service, and that nobody
  has changed it since it was signed.
- That the agent reported everything, or that there are no other records.
- Who a person is. Names of the principal and of who approved are as the agent's side sent them.
- What the agent was called. Its id is in the bundle; its name, when the record was made, is the
  word of the service.
- When it happened. Times in the bundle are the reporter's and the service's word. {when}
- That the log shows everyone the same. {who}
- That prov.json says all that the bundle says. It is a translation; the bundle decides."""

_LIMITS_OF_SESSION = """\
- That what the records say is true, or that the agent reported all that it did. The statement shows
  that the service had taken these records, and no others, when the session ended.
- That the findings are all. Those in the statement are counted when it was signed; rules and people
  add others later.
- That no other statement of this session was ever signed. If you got one earlier, compare its
  digest."""

_MOST_APPROVALS = 20

_AUTHORITY_LINE = "CA.pem      the root certificate of the timestamping authority, from elsewhere\n"

_CHAIN_LINE = "ROOT.pem    the root certificate of who says whose the key is, from elsewhere\n"

_TIMESTAMP_COMMANDS = """
    openssl ts -verify -data checkpoint -in checkpoint.tsr -CAfile tsa-chain.pem -attime {seconds}

The last one holds the authority's certificates to the moment of the timestamp: without -attime it
fails from the day they end. Put a root that you trust in place of tsa-chain.pem.
"""


def of_record(
    evidence: Evidence, checkpoint: Checkpoint, read: Bundle, names: Iterable[str]
) -> bytes:
    """Return the text of a record's pack, which has the files with these names, in UTF-8."""
    record, version = read["record"], read["record"]["agent"].get("version")
    agent = f"{one_line(record['agent']['name'], 200)} ({record['agent']['id']})"
    facts = {
        "Agent": agent + (f", version {one_line(version, 100)}" if version else ""),
        "Acted for": one_line(record["principal"], 200),
        "Signed by": _signer(evidence),
        "Approved by": _approvals(read.get("approvals", [])),
    }
    same = evidence.public_key == evidence.pack_key.public
    said = _said(evidence, checkpoint) | {
        "steps": _steps(evidence, checkpoint.size),
        "vkey": evidence.log_key,
        "when": _when(evidence),
        "who": _who(len(evidence.cosignatures)),
        "same_key": " (the same)" if same else " (not the bundle's)",
    }
    return _written(
        evidence,
        f"Evidence pack of the record {record['id']}",
        facts,
        _listed(_FILES, names, said),
        intro=_INTRO,
        how=_HOW.format(**said),
        limits=_LIMITS.format(**said),
    )


def of_session(
    evidence: SessionEvidence, checkpoint: Checkpoint, told: Mapping[str, Any], names: Iterable[str]
) -> bytes:
    """Return the same of a session's pack; `told` is its statement."""
    session = told["session"]
    facts = {
        "Agent": f"{visible(session['agent']['name'])} ({session['agent']['id']})",
        "Acts for": visible(session["principal"]),
        "Signed by": _signer(evidence),
        "Outcome": f"{session['outcome']}, completed at {session['completed_at']}",
        "Records": told["records"],
    }
    said = _said(evidence, checkpoint) | {"same_key": ""}
    return _written(
        evidence,
        f"Evidence pack of the session {session['id']}",
        facts,
        _listed(
            _FILES_OF_SESSION | {n: _FILES[n] for n in _FILES if n not in _FILES_OF_SESSION},
            names,
            said,
        ),
        intro=_INTRO_OF_SESSION,
        how=_HOW_OF_SESSION.format(**said).rstrip(),
        limits=_LIMITS_OF_SESSION,
    )


def _written(
    evidence: Proven, title: str, facts: Mapping[str, object], files: str, **sections: str
) -> bytes:
    facts = {
        **facts,
        "Anchored by": f"{evidence.anchored_by}.",
        "Made by": f"record-service {evidence.release} at {evidence.base_url}",
    }
    text = _TEXT.format(
        title=title,
        underline="=" * len(title),
        facts="\n".join(f"{name + ':':<12} {value}" for name, value in facts.items()),
        files=files,
        base_url=evidence.base_url,
        **sections,
    )
    return text.encode("utf-8")


def _said(evidence: Proven, checkpoint: Checkpoint) -> dict[str, object]:
    """Return what both kinds of packs say."""
    stamp, chain = evidence.timestamp, evidence.chain
    commands = ""
    if stamp is not None:
        commands = _TIMESTAMP_COMMANDS.format(seconds=math.floor(stamp.gen_time.timestamp()))
    return {
        "key": evidence.public_key.id,
        "pack_key": evidence.pack_key.public.id,
        "size": checkpoint.size,
        "origin": checkpoint.origin,
        "authority": "" if chain is None else one_line(chain.authority, 200),
        "stamped": "" if stamp is None else stamp.time,
        "options": ("" if stamp is None else " --tsa-ca CA.pem")
        + ("" if chain is None else " --ca ROOT.pem"),
        "root_lines": ("" if stamp is None else _AUTHORITY_LINE)
        + ("" if chain is None else _CHAIN_LINE),
        "timestamp_commands": commands,
    }


def _listed(files: Mapping[str, str], names: Iterable[str], said: Mapping[str, object]) -> str:
    """Write what each file is, those of the pack alone."""
    here = set(names)
    return "\n".join(
        textwrap.fill(
            text.format(**said),
            width=100,
            initial_indent=f"{name:<24}",
            subsequent_indent=" " * 24,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, text in files.items()
        if name in here
    )


def _steps(evidence: Evidence, size: int) -> str:
    """Write the way from the leaf to the root in shell, a line for each hash of the path."""
    node, last = evidence.leaf_index, size - 1
    lines = []
    for each in evidence.path:
        sibling = b64encode(each).decode()
        if node % 2 or node == last:
            lines.append(f'    h=$(node "{sibling}" "$h")\n')
            while node and node % 2 == 0:
                node, last = node // 2, last // 2
        else:
            lines.append(f'    h=$(node "$h" "{sibling}")\n')
        node, last = node // 2, last // 2
    return "".join(lines)


def _signer(evidence: Proven) -> str:
    """Write who signed, and who says so."""
    chain = evidence.chain
    if chain is None:
        return "whom the service says; no certificate names the owner of its key"
    return f"{one_line(chain.holder, 200)}, according to {one_line(chain.authority, 200)}"


def _approvals(approvals: Sequence[Approval]) -> str:
    """Write who decided what, and when; a line for each of the first."""
    if not approvals:
        return "nobody, as far as the record says"
    lines = [
        f"{one_line(each['approved_by'], 200)}: {one_line(each['decision'], 100)}, {each['at']}"
        for each in approvals[:_MOST_APPROVALS]
    ]
    if len(approvals) > _MOST_APPROVALS:
        lines.append(f"and {len(approvals) - _MOST_APPROVALS} more, in bundle.json")
    return "\n             ".join(lines)


def _when(evidence: Proven) -> str:
    stamp = evidence.timestamp
    if stamp is None and evidence.cosignatures:
        return (
            "No\n  timestamp by an authority is in this pack. Each cosignature has a time: when its"
            "\n  witness says that it saw this checkpoint."
        )
    if stamp is None:
        return "No\n  timestamp by others is in this pack, so nothing here bounds them."
    return f"The\n  timestamp shows only that the log had this leaf by {stamp.time}."


def _who(cosignatures: int) -> str:
    if not cosignatures:
        return "No witness has cosigned this checkpoint."
    return (
        "The cosignatures count for as much as you trust\n  the witnesses that your policy names."
    )
