"""Pure mathematics of tamper evidence: no clock, no database, no network.

`hash_chain` is the audit chain. `leaves` enter the tree by `entry_bundles`; `merkle` and
`tiles` grow it; `checkpoints` and `notes` sign it, under a `policy`; `tile_verification` proves
tiles.
"""
