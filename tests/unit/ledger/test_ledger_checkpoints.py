"""Checkpoints (C2SP tlog-checkpoint): one text for each tree."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger import checkpoints
from app.ledger.checkpoints import Checkpoint
from app.ledger.merkle import EMPTY_ROOT
from app.ledger.notes import Malformed, Note, Unverified
from tests.unit.ledger.note_examples import BEHIND_THE_SOFA, CHECKPOINT, ORIGIN, SIGNER, TEXTS


def test_the_example_checkpoint_is_read() -> None:
    note = Note.parse(BEHIND_THE_SOFA.encode())
    checkpoint = Checkpoint.parse(note.text)
    assert (checkpoint.origin, checkpoint.size) == ("example.com/behind-the-sofa", 20_852_163)
    assert checkpoint.text == note.text
    _, witness = note.signatures
    assert int.from_bytes(witness.payload[:8], "big") == 1_679_315_147


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
    assert checkpoints.read(bytes(note), SIGNER.verifier_key).size == 0
    assert note.text.split("\n")[1:3] == ["0", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="]


def test_a_log_signs_under_its_own_name_only() -> None:
    with pytest.raises(ValueError, match="does not sign for"):
        Checkpoint("else.example", 0, EMPTY_ROOT).sign(SIGNER)
    text = Checkpoint("else.example", 0, EMPTY_ROOT).text
    note = Note(text, (SIGNER.sign(text),))
    with pytest.raises(Unverified, match=r"is of else\.example"):
        checkpoints.read(bytes(note), SIGNER.verifier_key)


@pytest.mark.parametrize("origin", ["", "two\nlines", "tab\t", "lone \ud800"])
def test_no_checkpoint_has_an_origin_that_could_not_be_read_back(origin: str) -> None:
    with pytest.raises(Malformed):
        Checkpoint(origin, 1, bytes(32))
