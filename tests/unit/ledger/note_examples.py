"""Notes of the specifications, and keys of tests."""

from collections.abc import Callable
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st

from app.ledger import notes
from app.ledger.checkpoints import Checkpoint
from app.ledger.notes import Malformed, Signer

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
