"""The transparency log as a service: leaves are sequenced, signed and published.

`sequencer` is the order of commits: `generations`, `integration`, `tile_rows`, `head/`,
`candidates`, `publication`. `proofs` and `reading` answer; `status` reports;
`tree_walk` reads all of it again; `rebuild` and `succession` repair.
"""
