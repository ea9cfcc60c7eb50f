"""Verifying audit chains against what the database's owner cannot rewrite.

Whoever owns the database can change every table, hashes and anchors included. They cannot change
what was published of the log: its root, signed by a key that is sealed under MASTER_KEYS, lies
outside as well (`LOG_HEAD_URL`, timestamps, witnesses, heads that callers keep). So a chain is
recomputed (`app/core/verification/checks/stored_chain.py`), the log's leaves are read from the
first to the last and their root computed anew (`app/core/verification/checks/log_walk.py`), and
each head that the log ever took in is held against the chain
(`app/core/verification/checks/anchored_heads.py`): rows of `audit_anchors` are hints, never proof
that there are no others.

`verifier.py` puts that together for one tenant, `app/core/verification/checks/incremental.py` is
the short way from the newest anchor on, `daily.py` does it for all, and `alerts.py` remembers what
was found and tells it once.
"""
