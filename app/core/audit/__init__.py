"""The tenant's audit chain: appended to by every privileged action, read, exported and verified.

`chain.py` appends, `view.py` answers pages, `app/core/verification/export.py` gives all of it.
`chain_identity.py` names the chain in the log, and `verification/` holds it against what was
anchored there (`app/core/anchoring/`).
"""
