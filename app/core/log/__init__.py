"""The transparency log as a service: leaves are sequenced, signed and published.

`sequencer` is the order of commits: `generations`, `tile_rows`, `head_guard` with `head_store` and
`s3_head`, `publication`. `history` finds what the database lost. `proofs` answers; `status`
reports; `tree_walk` reads all of it again; `rebuild` and `succession` repair.
"""
