"""Verifies audit chains against what the database's owner cannot rewrite.

`verifier` verifies one chain by `stored_chain`, `published_log` and `anchored_heads`; `daily` does
it in the background, and for all chains. `alerts` reports breaks; `export` streams a chain.
"""
