"""The actors, declared by `registry`.

Each second `sweep`; every few minutes `send_digests`, `anchor_audit` and `stamp_checkpoint`; daily
`prune_history`. Shorter ones are in `ticks`. On demand `deliver` and `run_job`, in
`jobs/delivery/` and `jobs/durable/`.
"""
