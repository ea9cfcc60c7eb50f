"""`README.txt`: what a pack holds and how an auditor verifies it."""

import math
from base64 import b64encode
from collections.abc import Sequence

from app.evidence.bundle import Approval, Bundle
from app.evidence.pack.evidence import Evidence
from app.ledger.checkpoints import Checkpoint
from app.lib.crypto.signing_certificates import SigningChain
from app.lib.crypto.timestamps import Stamp
from app.lib.text_sanitizer import one_line

_TEXT = """\
Evidence pack of the record {record_id}
{underline}

This folder shows what an AI agent was recorded to have done, who signed that record, and that its
hash stands in a public, append-only log. Everything can be checked without the service that made
it, offline.

Agent:       {agent_name} ({agent_id}){version}
Acted for:   {principal}
Signed by:   {signer}
Approved by: {approvals}
Anchored by: {sentence}.
Made by:     record-service {release} at {base_url}


What is in here
---------------

bundle.json         the record: exactly the bytes that were signed
bundle.sig          the Ed25519 signature over them, 64 bytes
public-key.pem      the key that signed the bundle; its id is {bundle_key}
prov.json           the same record as W3C PROV-JSON, made from the bundle
anchor.json         the record's place in the log, the log's key, timestamps and cosignatures
record.tlog-proof   the same proof in the form of C2SP tlog-proof, with the cosignatures
checkpoint          the log's signed statement of its size and root: {size} leaves, of the log
                    {origin}
{more_files}pack-key.pem        the key that signed this pack; its id is {pack_key}{same_key}
record.html         the record as a page to read in any browser, offline; it is a rendering:
                    bundle.json is what is signed
SHA256SUMS          the SHA-256 of every file above, of README.txt and of verify.py
SHA256SUMS.sig      the signature of pack-key.pem over SHA256SUMS
manifest.json       every file but itself, with size and SHA-256
verify.py           checks all of this; Python 3.8 or newer, nothing else


How to check it
---------------

A script cannot vouch for itself, nor can a pack for its keys. Take all three from the service, not
from whoever gave you the pack:

    curl -fsS -o verify.py {base_url}/verify.py
    curl -fsS -o keys.json {base_url}/.well-known/jwks.json
    (echo "log $(curl -fsS {base_url}/v1/log/key)"; echo "quorum none") > policy

Compare the SHA-256 of verify.py with the one that was published for its release
(app/evidence/verify.py.sha256 in the source), and the keys with what you kept from before or others
have. Then, with the ZIP:

    python3 -I -S verify.py PACK.zip --key keys.json --policy policy{authority_option} --strict

keys.json   the service's public keys, or one that you have as PEM; --key may be given again
policy      a C2SP tlog-policy: the key of the log {origin} (if that
            log has ended, its vkey in keys.json), and the witnesses that you need, here none
{authority_line}
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

Cosignatures, and that prov.json is about this bundle, take verify.py or another program.


What this does not prove
------------------------

- That what the record says is true. It shows what was reported to the service, and that nobody
  has changed it since it was signed.
- That the agent reported everything, or that there are no other records.
- Who a person is. Names of the principal and of who approved are as the agent's side sent them.
- What the agent was called. Its id is in the bundle; its name, when the record was made, is the
  word of the service.
- When it happened. Times in the bundle are the reporter's and the service's word. {when}
- That the log shows everyone the same. {who}
- That prov.json says all that the bundle says. It is a translation; the bundle decides.
"""

_MOST_APPROVALS = 20

_AUTHORITY_LINE = "CA.pem      the root certificate of the timestamping authority, from elsewhere\n"

_CHAIN_LINE = "ROOT.pem    the root certificate of who says whose the key is, from elsewhere\n"

_TIMESTAMP_FILES = """\
checkpoint.tsr      an RFC 3161 timestamp of the file checkpoint: {gen_time}
tsa-chain.pem       the certificates of the authority that made it, its root included
"""

_CHAIN = """\
signing-chain.pem   the certificates by which {authority}
                    says whose the key public-key.pem is
"""

_FURTHER = {
    "findings.json": """\
findings.json       what rules or people found in the record, as it stood when this pack was made.
                    Findings are not in the log: the signature of pack-key.pem over SHA256SUMS
                    is all that speaks for them, and for there being no others then
""",
    "session-key.pem": """\
session-key.pem     the key that signed session-statement.json: not the bundle's
""",
    "session-proof.json": """\
session-proof.json  the record's place in its session, and the path of the SHA-256 of bundle.json
                    to the root in session-statement.json
""",
    "session-statement.json": """\
session-statement.json, session-statement.sig
                    how many records the session held when it ended, signed as the bundle is. The
                    session's own pack has all of them, and the statement's place in the log
""",
}

_TIMESTAMP_COMMANDS = """
    openssl ts -verify -data checkpoint -in checkpoint.tsr -CAfile tsa-chain.pem -attime {seconds}

The last one holds the authority's certificates to the moment of the timestamp: without -attime it
fails from the day they end. Put a root that you trust in place of tsa-chain.pem.
"""


def write(evidence: Evidence, checkpoint: Checkpoint, read: Bundle) -> bytes:
    """Return the text in UTF-8."""
    record, approvals = read["record"], read.get("approvals", [])
    record_id, version = record["id"], record["agent"].get("version")
    title = f"Evidence pack of the record {record_id}"
    same = evidence.public_key == evidence.pack_key.public
    stamp = evidence.timestamp
    files = commands = chain_option = chain_line = ""
    if evidence.chain is not None:
        files = _CHAIN.format(authority=one_line(evidence.chain.authority, 200))
        chain_option, chain_line = " --ca ROOT.pem", _CHAIN_LINE
    if stamp is not None:
        files += _TIMESTAMP_FILES.format(gen_time=stamp.time)
        commands = _TIMESTAMP_COMMANDS.format(seconds=math.floor(stamp.gen_time.timestamp()))
    text = _TEXT.format(
        record_id=record_id,
        underline="=" * len(title),
        agent_name=one_line(record["agent"]["name"], 200),
        agent_id=record["agent"]["id"],
        version=f", version {one_line(version, 100)}" if version else "",
        principal=one_line(record["principal"], 200),
        approvals=_approvals(approvals),
        sentence=evidence.anchored_by,
        release=evidence.release,
        base_url=evidence.base_url,
        bundle_key=evidence.public_key.id,
        pack_key=evidence.pack_key.public.id,
        same_key=" (the same)" if same else "\n                    (not the bundle's)",
        size=checkpoint.size,
        origin=checkpoint.origin,
        signer=signer(evidence.chain),
        more_files=files + "".join(_FURTHER.get(name, "") for name in sorted(evidence.further)),
        authority_option=("" if stamp is None else " --tsa-ca CA.pem") + chain_option,
        authority_line=("" if stamp is None else _AUTHORITY_LINE) + chain_line,
        steps=_steps(evidence, checkpoint.size),
        vkey=evidence.log_key,
        timestamp_commands=commands,
        when=_when(stamp, len(evidence.cosignatures)),
        who=_who(len(evidence.cosignatures)),
    )
    return text.encode("utf-8")


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


def signer(chain: SigningChain | None) -> str:
    """Write who signed, and who says so."""
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


def _when(stamp: Stamp | None, cosignatures: int) -> str:
    if stamp is None and cosignatures:
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
