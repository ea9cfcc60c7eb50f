"""The actors, declared by `registry`.

On demand `deliver`; each second `sweep` and `integrate`; each ten seconds `index_findings`; every
few minutes `send_digests`, `expire_bundles`, `anchor_audit`, `stamp_checkpoint`, `free_stuck_jobs`,
`check_master_keys`; daily `verify_audit`, `prune_history`. `run_job` is in `jobs/durable/`.
"""
