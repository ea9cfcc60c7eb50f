"""Cosignatures by ML-DSA-44 (C2SP tlog-cosignature), beside another implementation of them."""

from dataclasses import replace

import pytest
from tlog_scales import signing, tlog

from app.ledger.notes import Malformed, Note, Unverified, VerifierKey
from tests.support.evidence.witnesses import QuantumWitness
from tests.unit.ledger.test_ledger_notes import CHECKPOINT, ORIGIN, SIGNER


def test_an_ml_dsa_cosignature_holds_for_its_name_log_size_root_and_time() -> None:
    witness = QuantumWitness("witness.example/q")
    key, line = witness.quantum_vkey, witness.quantum(CHECKPOINT, 1679315147)
    assert VerifierKey.parse(str(key)) == key
    assert key.verify(CHECKPOINT.text, line).seconds == 1679315147
    note = CHECKPOINT.sign(SIGNER).with_signatures([line])
    assert len(note.signed_by([key, SIGNER.verifier_key])) == 2
    tlog.Checkpoint.from_text(str(note)).verify(signing.Vkey.from_string(str(key)))
    theirs = signing.MLDSA44CosignatureSigner(witness.name, witness.quantum_key)
    made = tlog.Checkpoint.make_signed(ORIGIN, CHECKPOINT.size, CHECKPOINT.root, [theirs])
    assert len(Note.parse(made.serialize().encode()).signed_by([key])) == 1
    # Extension lines are not part of what it signs, and all else is.
    assert key.verify(CHECKPOINT.text + "extension\n", line).seconds
    later = (1679315148).to_bytes(8, "big") + line.payload[8:]
    other = replace(key, name="witness.example/r")
    for text, by, wrong in (
        (replace(CHECKPOINT, size=CHECKPOINT.size + 1).text, key, line),
        (replace(CHECKPOINT, origin="log.example/other").text, key, line),
        (replace(CHECKPOINT, root=bytes(31) + b"\1").text, key, line),
        (CHECKPOINT.text, key, replace(line, payload=later)),
        (CHECKPOINT.text, key, replace(line, payload=line.payload[:-1])),
        (CHECKPOINT.text, other, replace(line, name=other.name)),
        ("a text\n", key, line),
        ("a\nb\nc\n", key, line),
    ):
        with pytest.raises(Unverified):
            by.verify(text, wrong)
    with pytest.raises(Malformed):
        VerifierKey.parse(str(replace(key, key_hash=bytes(4))))
    with pytest.raises(Malformed):
        VerifierKey.parse(str(replace(key, public_key=key.public_key[1:])))
