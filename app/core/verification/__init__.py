"""Verifies audit chains against what the database's owner cannot rewrite.

`verifier` verifies one chain by `stored_chain`, `published_log`, `anchored_heads` and `stamps`;
`daily` does it in the background, and for all chains, with `sealed_notes`. `alerts` reports breaks;
`export` streams a chain.
"""
