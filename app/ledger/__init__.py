"""Pure mathematics of tamper evidence: no clock, no database, no network.

`hash_chain` is the audit chain. `leaves` enter the tree, which `merkle` and `tiles` grow and prove;
`notes` sign its checkpoints, under a `policy`.
"""
