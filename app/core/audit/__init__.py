"""The tenant's audit chain: `chain` appends to it and names it in the log, `view` answers pages.

`archive` has the bodies of old entries. `refusals` enters refused access, and `record_reads` reads
of content.

`app/core/verification/` verifies and exports it.
"""
