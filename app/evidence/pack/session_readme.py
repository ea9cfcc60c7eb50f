"""`README.txt` of a session's pack: what it holds and how an auditor verifies it."""

import math
from typing import Any

from app.evidence.pack.evidence import SessionEvidence
from app.evidence.pack.readme import signer
from app.ledger.checkpoints import Checkpoint
from app.lib.text_sanitizer import visible

_TEXT = """\
Evidence pack of the session {session_id}
{underline}

This folder shows everything that was recorded in one run of an AI agent. When the run ended, the
service signed how many records it had, and a hash over all of them, and put the hash of that
statement into a public, append-only log. Everything can be checked without the service, offline.

Agent:       {agent_name} ({agent_id})
Acts for:    {principal}
Signed by:   {signer}
Outcome:     {outcome}, completed at {completed_at}
Records:     {records}
Anchored by: {anchored_by}.
Made by:     record-service {release} at {base_url}


What is in here
---------------

session-statement.json  the statement: exactly the bytes that were signed
session-statement.sig   the Ed25519 signature over them, 64 bytes
public-key.pem          the key that signed the statement; its id is {key}
session-digests.txt     the SHA-256 of each record's bundle, in order: the statement's root is over
                        these (RFC 9162; a leaf's data are the 32 bytes of a digest)
records.ndjson          a line for each of them: whether its bundle is here, its signature, its
                        leaf in the log; then a line for what was found beside them
bundles.ndjson          the bundles that are here, in that order, each as it was signed, and a
                        newline. What has expired is not here: its digest proves that it was
findings.ndjson         the session's findings, as they stood when this pack was made
keys.json               the keys that signed the bundles
anchor.json             the statement's place in the log, the log's key, timestamps, cosignatures
session.tlog-proof      the same proof in the form of C2SP tlog-proof, with the cosignatures
checkpoint              the log's signed statement of its size and root: {size} leaves, of the log
                        {origin}
{timestamp_files}pack-key.pem            the key that signed this pack; its id is {pack_key}
SHA256SUMS              the SHA-256 of every file above, of README.txt and of verify.py
SHA256SUMS.sig          the signature of pack-key.pem over SHA256SUMS
manifest.json           every file but itself, with size and SHA-256
verify.py               checks all of this; Python 3.8 or newer, nothing else


How to check it
---------------

A script cannot vouch for itself, nor can a pack for its keys. Take all three from the service, not
from whoever gave you the pack:

    curl -fsS -o verify.py {base_url}/verify.py
    curl -fsS -o keys.json {base_url}/.well-known/jwks.json
    (echo "log $(curl -fsS {base_url}/v1/log/key)"; echo "quorum none") > policy

    python3 -I -S verify.py PACK.zip --key keys.json --policy policy{authority_option} --strict

It names each record that was sealed and is not here, each that was added, and each that was
changed. By hand, with OpenSSL 3, record 5 of those whose bundles are here (sed counts from 1):

    openssl pkeyutl -verify -pubin -inkey public-key.pem -rawin -in session-statement.json \\
        -sigfile session-statement.sig
    sed -n 5p bundles.ndjson | head -c -1 | sha256sum


What this does not prove
------------------------

- That what the records say is true, or that the agent reported all that it did. The statement shows
  that the service had taken these records, and no others, when the session ended.
- That the findings are all. Those in the statement are counted when it was signed; rules and people
  add others later.
- That no other statement of this session was ever signed. If you got one earlier, compare its
  digest.
"""

_CHAIN = """\
signing-chain.pem       the certificates of an authority that says whose the key public-key.pem is
"""

_TIMESTAMP_FILES = """\
checkpoint.tsr          an RFC 3161 timestamp of the file checkpoint: {time}
                        (openssl ts -verify -data checkpoint -in checkpoint.tsr
                        -CAfile tsa-chain.pem -attime {seconds})
tsa-chain.pem           the certificates of the authority that made it, its root included
"""


def write(evidence: SessionEvidence, checkpoint: Checkpoint, said: dict[str, Any]) -> bytes:
    """Return the text in UTF-8; `said` is the statement."""
    session, stamp = said["session"], evidence.timestamp
    files = "" if evidence.chain is None else _CHAIN
    if stamp is not None:
        seconds = math.floor(stamp.gen_time.timestamp())
        files += _TIMESTAMP_FILES.format(time=stamp.time, seconds=seconds)
    text = _TEXT.format(
        session_id=session["id"],
        underline="=" * (len("Evidence pack of the session ") + len(session["id"])),
        agent_name=visible(session["agent"]["name"]),
        agent_id=session["agent"]["id"],
        principal=visible(session["principal"]),
        signer=signer(evidence.chain),
        outcome=session["outcome"],
        completed_at=session["completed_at"],
        records=said["records"],
        anchored_by=evidence.anchored_by,
        release=evidence.release,
        base_url=evidence.base_url,
        key=evidence.public_key.id,
        size=checkpoint.size,
        origin=checkpoint.origin,
        timestamp_files=files,
        pack_key=evidence.pack_key.public.id,
        authority_option=("" if stamp is None else " --tsa-ca CA.pem")
        + ("" if evidence.chain is None else " --ca ROOT.pem"),
    )
    return text.encode("utf-8")
