"""Signed notes, verifier keys and checkpoints (C2SP signed-note, tlog-cosignature, -checkpoint)."""

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from tlog_scales import signing, tlog

from app.ledger import notes
from app.ledger.merkle import EMPTY_ROOT
from app.ledger.notes import (
    COSIGNATURE,
    Checkpoint,
    Malformed,
    Note,
    Signature,
    Signer,
    Unverified,
    VerifierKey,
)

BEHIND_THE_SOFA = (
    "example.com/behind-the-sofa\n"
    "20852163\n"
    "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    "— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2"
    "oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
)
ORIGIN = "log.example/records"
SIGNER = Signer(ORIGIN, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
CHECKPOINT = Checkpoint(ORIGIN, 42, sha256(b"root").digest())
TEXTS = st.text(max_size=40).map("{}\n".format).filter(lambda t: _accepted(notes.check_text, t))


def _accepted(check: Callable[[str], object], value: str) -> bool:
    try:
        check(value)
    except Malformed:
        return False
    return True


# The example of the Go package `note`, whose format C2SP signed-note is.
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NEUMANNS_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n\n"
    "— PeterNeumann "
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
# The examples of C2SP signed-note, tlog-checkpoint and tlog-cosignature, published without keys.
QUASIMODO = (
    "Ognuno sta solo sul cuor della terra\n"
    "trafitto da un raggio di sole:\n\n"
    "ed è subito sera.\n\n"
    "— quasimodo.example/salvatore "
    "NnugSzTjtVAewIS+Z/iJhUPeFDkO/5QQ2i5ddnGITLlC+EhfLW9oJKONrMouFSQU0xMcXxj99ihAQwaqP3ZekRwNtIc=\n"
)
WITNESS = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))
WITNESS_KEY = VerifierKey.ed25519(
    "witness.example/w1", WITNESS.public_key().public_bytes_raw(), COSIGNATURE
)


def cosignature(text: str, seconds: int) -> Signature:
    """As tlog-cosignature specifies it, written out by hand."""
    raw = WITNESS.sign(b"cosignature/v1\ntime %d\n" % seconds + text.encode())
    payload = seconds.to_bytes(8, "big") + raw
    return Signature(WITNESS_KEY.name, WITNESS_KEY.key_hash, payload)


def test_the_example_of_the_go_package_verifies() -> None:
    key = VerifierKey.parse(NEUMANN)
    note = Note.parse(NEUMANNS_NOTE.encode())
    assert [each.key for each in note.signed_by([key])] == [key]
    assert bytes(note) == NEUMANNS_NOTE.encode()
    assert str(key) == NEUMANN


@pytest.mark.parametrize("example", [QUASIMODO, BEHIND_THE_SOFA])
def test_the_examples_of_the_specifications_are_read_and_written(example: str) -> None:
    note = Note.parse(example.encode())
    assert str(note) == example
    assert note.text == example[: example.rindex("\n\n") + 1]


def test_a_verifier_key_is_what_the_specification_says() -> None:
    public = SIGNER.private_key.public_key().public_bytes_raw()
    digest = sha256(ORIGIN.encode() + b"\x0a\x01" + public).hexdigest()
    expected = f"{ORIGIN}+{digest[:8]}+{b64encode(bytes([1]) + public).decode()}"
    assert str(SIGNER.verifier_key) == expected
    theirs = signing.Vkey.from_string(expected)
    ours = SIGNER.verifier_key
    assert (theirs.name, theirs.pubkey) == (ours.name, ours.public_key)
    derived = signing.PlainEd25519Signer(ORIGIN, bytes(range(32))).vkey.key_id
    assert derived.to_bytes(4, "big") == ours.key_hash


def test_a_stranger_signs_the_same_checkpoint_and_verifies_ours() -> None:
    note = CHECKPOINT.sign(SIGNER)
    signer = signing.PlainEd25519Signer(ORIGIN, bytes(range(32)))
    theirs = tlog.Checkpoint.make_signed(ORIGIN, 42, CHECKPOINT.root, [signer])
    assert theirs.serialize() == str(note)
    read = tlog.Checkpoint.from_text(str(note))
    read.verify(signing.Vkey.from_string(str(SIGNER.verifier_key)))
    assert notes.read_checkpoint(bytes(note), SIGNER.verifier_key) == CHECKPOINT


def test_cosignatures_verify_here_and_elsewhere() -> None:
    log = CHECKPOINT.sign(SIGNER)
    note = log.with_signatures([cosignature(log.text, 1_679_315_147)])
    assert str(note).startswith(str(log))
    signed = note.signed_by([SIGNER.verifier_key, WITNESS_KEY])
    assert [each.seconds for each in signed] == [None, 1_679_315_147]
    assert [each.key for each in signed] == [SIGNER.verifier_key, WITNESS_KEY]
    theirs = tlog.Checkpoint.from_text(str(note))
    theirs.verify(signing.Vkey.from_string(str(WITNESS_KEY)))


def test_a_cosignature_with_another_time_is_refused() -> None:
    line = cosignature(CHECKPOINT.text, 1000)
    moved = Signature(line.name, line.key_hash, (1001).to_bytes(8, "big") + line.payload[8:])
    beyond = cosignature(CHECKPOINT.text, 2**63)
    plain = Signature(line.name, line.key_hash, line.payload[8:])
    for odd in (moved, beyond, plain):
        with pytest.raises(Unverified):
            WITNESS_KEY.verify(CHECKPOINT.text, odd)


@given(st.integers(0, len(bytes(CHECKPOINT.sign(SIGNER))) * 8 - 1))
def test_a_note_with_one_bit_flipped_is_refused(bit: int) -> None:
    whole = bytearray(bytes(CHECKPOINT.sign(SIGNER)))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Malformed, Unverified)):
        notes.read_checkpoint(bytes(whole), SIGNER.verifier_key)


def test_lines_by_others_are_passed_over_and_kept() -> None:
    other = Signer("else.example", Ed25519PrivateKey.generate())
    twin = Signer(ORIGIN, Ed25519PrivateKey.generate())
    note = CHECKPOINT.sign(SIGNER).with_signatures(
        [other.sign("something else\n"), twin.sign("something else\n")]
    )
    assert [each.key for each in note.signed_by([SIGNER.verifier_key])] == [SIGNER.verifier_key]
    assert Note.parse(bytes(note)) == note
    assert note.signed_by([VerifierKey.parse(NEUMANN)]) == note.signed_by([]) == []
    with pytest.raises(Unverified, match="no signature by a key that is known"):
        notes.read_checkpoint(bytes(note), VerifierKey.parse(NEUMANN))


def test_one_wrong_line_by_a_known_key_spoils_the_note() -> None:
    wrong = SIGNER.sign("something else\n")
    for lines in ([wrong, SIGNER.sign(CHECKPOINT.text)], [SIGNER.sign(CHECKPOINT.text), wrong]):
        with pytest.raises(Unverified, match="does not hold"):
            Note(CHECKPOINT.text, tuple(lines)).signed_by([SIGNER.verifier_key])


def test_a_key_counts_once_and_a_line_is_appended_once() -> None:
    first, again = (cosignature(CHECKPOINT.text, seconds) for seconds in (1, 2))
    note = CHECKPOINT.sign(SIGNER).with_signatures([first, again, first])
    assert len(note.signatures) == 3
    assert note.with_signatures([again]) == note
    assert [each.seconds for each in note.signed_by([WITNESS_KEY])] == [1]


def test_keys_of_other_algorithms_are_read_but_never_check() -> None:
    text = f"new.example+0a0b0c0d+{b64encode(bytes([7]) + bytes(1312)).decode()}"
    key = VerifierKey.parse(text)
    line = Signature(key.name, key.key_hash, bytes(2428))
    assert not key.checkable
    assert key.made(line)
    note = CHECKPOINT.sign(SIGNER).with_signatures([line])
    assert len(note.signed_by([key, SIGNER.verifier_key])) == 1
    with pytest.raises(Unverified, match="cannot be checked"):
        key.verify(note.text, line)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PeterNeumann",
        NEUMANN + "\n",
        " " + NEUMANN,
        NEUMANN.replace("c74f20a3", "C74F20A3"),
        NEUMANN.replace("c74f20a3", "c74f20a4"),
        NEUMANN.replace("Peter", "Paul"),
        NEUMANN.replace("PeterNeumann", ""),
        NEUMANN.replace("PeterNeumann", "Peter Neumann"),
        NEUMANN[:-4],
        NEUMANN[:-1] + "=",
        "PeterNeumann+c74f20a3+",
        "PeterNeumann+c74f20a3+AQ==",
    ],
)
def test_no_other_text_is_a_verifier_key(text: str) -> None:
    with pytest.raises(Malformed):
        VerifierKey.parse(text)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda note: b"",
        lambda note: b"\n",
        lambda note: note[:-1],
        lambda note: note + b"\n",
        lambda note: note + b"more\n",
        lambda note: note.replace(b"\n", b"\r\n"),
        lambda note: note.replace(b"If you", b"If\tyou"),
        lambda note: note.replace(b"If you", b"If\x00you"),
        lambda note: note.replace(b"If you", b"If\xffyou"),
        lambda note: note.replace(b"If you", b"If\xed\xa0\x80you"),
        lambda note: note.replace("— ".encode(), b"- "),
        lambda note: note.replace("— ".encode(), "—  ".encode()),
        lambda note: note.replace("— ".encode(), "—".encode()),
        lambda note: note.replace(b"PeterNeumann ", b""),
        lambda note: note.replace(b"PeterNeumann ", b"PeterNeumann  "),
        lambda note: note.replace(b"PeterNeumann ", b"Peter+Neumann "),
        lambda note: note.replace(b"PeterNeumann ", "Peter\u2003Neumann ".encode()),
        lambda note: note.replace(b"nAM=", b"nAM"),
        lambda note: note.replace(b"nAM=", b"nAN="),
        lambda note: note.replace(b"nAM=", b"nA-="),
        lambda note: note.replace(b"nAM=", b"nAM= "),
        lambda note: note[: note.index(b"\n\n")] + "\n\n— PeterNeumann x08gow==\n".encode(),
        lambda note: note[: note.index(b"\n\n") + 2],
        lambda note: note[note.index(b"\n\n") + 2 :],
    ],
)
def test_no_other_bytes_are_a_note(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Malformed):
        Note.parse(spoil(NEUMANNS_NOTE.encode()))


def test_a_note_has_a_hundred_lines_at_most() -> None:
    note = NEUMANNS_NOTE.encode()
    start = note.index(b"\n\n") + 2
    assert len(Note.parse(note + note[start:] * 99).signatures) == 100
    with pytest.raises(Malformed, match="1 to 100"):
        Note.parse(note + note[start:] * 100)
    with pytest.raises(Malformed, match="1 to 100"):
        Note("text\n", ())


NAMES = st.text(min_size=1, max_size=12).filter(lambda name: _accepted(notes.check_name, name))
LINES = st.builds(
    Signature, NAMES, st.binary(min_size=4, max_size=4), st.binary(min_size=1, max_size=80)
)


@given(TEXTS, st.lists(LINES, min_size=1, max_size=4))
def test_every_note_is_read_back(text: str, lines: list[Signature]) -> None:
    note = Note(text, tuple(lines))
    assert Note.parse(bytes(note)) == note


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", "— a ", "AAAAAAA=", "AAAAAAB=", " ", "é"])))
def test_every_note_that_is_read_is_canonical(parts: list[str]) -> None:
    data = "".join(parts).encode()
    try:
        note = Note.parse(data)
    except Malformed:
        return
    assert bytes(note) == data


@given(NAMES, st.binary(min_size=32, max_size=32), st.sampled_from([1, COSIGNATURE]))
def test_every_verifier_key_is_read_back(name: str, public: bytes, algorithm: int) -> None:
    key = VerifierKey.ed25519(name, public, algorithm)
    assert VerifierKey.parse(str(key)) == key


# Checkpoints: one text for each tree.


ROOT = b64encode(CHECKPOINT.root).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        f"{ORIGIN}\n42\n{ROOT}",
        f"{ORIGIN}\n42\n",
        f"\n42\n{ROOT}\n",
        f"{ORIGIN}\n042\n{ROOT}\n",
        f"{ORIGIN}\n+42\n{ROOT}\n",
        f"{ORIGIN}\n-1\n{ROOT}\n",
        f"{ORIGIN}\n42 \n{ROOT}\n",
        f"{ORIGIN}\n4_2\n{ROOT}\n",
        f"{ORIGIN}\n\u0664\u0662\n{ROOT}\n",
        f"{ORIGIN}\n\n{ROOT}\n",
        f"{ORIGIN}\n{2**63}\n{ROOT}\n",
        f"{ORIGIN}\n0\n{ROOT}\n",
        f"{ORIGIN}\n42\n{ROOT[:-1]}\n",
        f"{ORIGIN}\n42\n{ROOT} \n",
        f"{ORIGIN}\n42\n{b64encode(bytes(31)).decode()}\n",
        f"{ORIGIN}\n42\n{b64encode(bytes(33)).decode()}\n",
        f"{ORIGIN}\n42\n{ROOT}\n\n",
        f"{ORIGIN}\n42\n{ROOT}\nmore\n",
        f"{ORIGIN}\n42\n{ROOT}\nmore\n\n",
        f"{ORIGIN}\r\n42\r\n{ROOT}\r\n",
    ],
)
def test_no_other_text_is_a_checkpoint(text: str) -> None:
    with pytest.raises(Malformed):
        Checkpoint.parse(text)


@given(
    TEXTS.map(lambda text: text.replace("\n", "") or "log"),
    st.integers(1, 2**63 - 1),
    st.binary(min_size=32, max_size=32),
)
def test_every_checkpoint_is_read_back(origin: str, size: int, root: bytes) -> None:
    checkpoint = Checkpoint(origin, size, root)
    assert Checkpoint.parse(checkpoint.text) == checkpoint


@given(st.text("0123456789 +-_\u0661", max_size=4), st.text("AB=\n+", max_size=4))
def test_every_checkpoint_that_is_read_is_canonical(size: str, end: str) -> None:
    text = f"{ORIGIN}\n{size}\n{ROOT[:-2]}{end}\n"
    try:
        checkpoint = Checkpoint.parse(text)
    except Malformed:
        return
    assert checkpoint.text == text


def test_the_empty_log_has_a_checkpoint() -> None:
    note = Checkpoint(ORIGIN, 0, EMPTY_ROOT).sign(SIGNER)
    assert notes.read_checkpoint(bytes(note), SIGNER.verifier_key).size == 0
    assert note.text.split("\n")[1:3] == ["0", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="]


def test_a_log_signs_under_its_own_name_only() -> None:
    with pytest.raises(ValueError, match="does not sign for"):
        Checkpoint("else.example", 0, EMPTY_ROOT).sign(SIGNER)
    text = Checkpoint("else.example", 0, EMPTY_ROOT).text
    note = Note(text, (SIGNER.sign(text),))
    with pytest.raises(Unverified, match=r"is of else\.example"):
        notes.read_checkpoint(bytes(note), SIGNER.verifier_key)


@pytest.mark.parametrize("origin", ["", "two\nlines", "tab\t", "lone \ud800"])
def test_no_checkpoint_has_an_origin_that_could_not_be_read_back(origin: str) -> None:
    with pytest.raises(Malformed):
        Checkpoint(origin, 1, bytes(32))
