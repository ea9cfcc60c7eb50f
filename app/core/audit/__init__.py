"""The tenant's audit chain: `chain` appends to it, `view` answers pages of it.

`chain_identity` names the chain in the log. `app/core/verification/` verifies and exports it.
"""
