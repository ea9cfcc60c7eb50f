"""The tenant's audit chain: appended to by every privileged action, read, exported and verified.

`chain.py` appends, `view.py` answers pages, `export.py` gives all of it. `salts.py` names the chain
in the log, and `verification/` holds it against what was anchored there (`app/core/anchoring/`).
"""
