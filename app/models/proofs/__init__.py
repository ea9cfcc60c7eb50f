"""Proofs: `audit` chains, the `log`, and `anchors` between them."""
