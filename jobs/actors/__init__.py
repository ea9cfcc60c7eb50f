"""The actors, declared by `registry`.

`deliver`; each second `sweep` and `integrate`; each ten `index_findings`; in minutes
`send_digests`, `expire_bundles`, `anchor_audit`, `stamp_checkpoint`, `free_stuck_jobs`,
`check_master_keys`; daily `verify_audit` and `prune_history`. `run_job` is in `jobs/durable/`.
"""
