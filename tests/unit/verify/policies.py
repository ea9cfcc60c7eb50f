"""Texts of witness policies (C2SP tlog-policy): a good one, and those that are none."""

from app.ledger.notes import COSIGNATURE, ML_DSA_44, VerifierKey, key_hash
from tests.unit.verify import packs

LOG = str(packs.LOG.verifier_key)
X1, X2, X3, Y1 = (str(packs.witness_key(number)) for number in (1, 2, 3, 4))
NESTED = f"""# two levels
log {LOG} https://log.example/

witness X1 {X1} https://w1.example/submit
witness\tX2\t{X2}
  witness X3 {X3}
group X 2 X1 X2 X3
witness Y1 {Y1}
group all-of-them all X Y1
quorum all-of-them
"""


# Another log's ECDSA key and its ML-DSA key, and witnesses with keys of such types.
ECDSA = VerifierKey("ecdsa.example", b"\1\2\3\4", 0x02, bytes(range(91)))
ML_DSA = VerifierKey(
    "mldsa.example", key_hash("mldsa.example", ML_DSA_44, bytes(1312)), ML_DSA_44, bytes(1312)
)
OTHERS = f"""log {LOG}
log {packs.OTHER_LOG}
log {ECDSA}
log {ML_DSA} https://mldsa.example/
witness e {ECDSA}
witness m {ML_DSA}
witness X1 {X1}
group some any e m X1
quorum some
"""


def same_key_as_x1() -> str:
    public = packs.private_key(1).public_key().public_bytes_raw()
    return str(VerifierKey.ed25519("other.example", public, COSIGNATURE))


NO_POLICIES = [
    "",
    "quorum none",
    "quorum none\nquorum none\n",
    "quorum none \x0b\n",
    "quorum none\r\n",
    "quorum X\n",
    "quorum\n",
    "Quorum none\n",
    f"quorum X1\nwitness X1 {X1}\n",
    f"log {X1}\nquorum none\n",
    f"log {LOG} a b\nquorum none\n",
    f"log {LOG}\nlog {LOG}\nquorum none\n",
    f"log {ECDSA}\nlog {ECDSA}\nquorum none\n",
    f"witness e {ECDSA}\nwitness f {ECDSA}\nquorum none\n",
    f"witness X1 {LOG}\nquorum none\n",
    f"witness none {X1}\nquorum none\n",
    f"witness X1 {X1}\nwitness X1 {X2}\nquorum none\n",
    f"witness X1 {X1}\nwitness X2 {same_key_as_x1()}\nquorum none\n",
    f"witness X1 {X1[:-4]}AAA=\nquorum none\n",
    f"witness X1 {X1}\ngroup g 0 X1\nquorum g\n",
    f"witness X1 {X1}\ngroup g 01 X1\nquorum g\n",
    f"witness X1 {X1}\ngroup g 2 X1\nquorum g\n",
    f"witness X1 {X1}\ngroup g any\nquorum g\n",
    f"witness X1 {X1}\ngroup g any X1 X1\nquorum g\n",
    f"witness X1 {X1}\ngroup g any X1\ngroup h any X1\nquorum g\n",
    f"witness X1 {X1}\ngroup g any g\nquorum g\n",
    f"witness X1 {X1}\ngroup g any none\nquorum g\n",
    f"witness X1 {X1}\ngroup X1 any X1\nquorum X1\n",
    f"group g any X1\nwitness X1 {X1}\nquorum g\n",
]
