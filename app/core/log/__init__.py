"""The transparency log as a service: what is committed to, published so that nobody can unsay it.

`sequencer` narrates the order of commits: `generations`, `integration`, `tile_rows`, `head/`,
`candidates`, `publication`. `proofs` and `reading` answer; `status` reports; `recovery/` repairs.
"""
