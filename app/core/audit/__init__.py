"""The tenant's audit chain: `chain` appends to it and names it in the log, `view` answers pages.

`app/core/verification/` verifies and exports it.
"""
