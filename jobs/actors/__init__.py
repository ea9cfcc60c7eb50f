"""The actors, declared by `registry`: `sweep` each second, `prune_history` daily, other `ticks`.

On demand `judge`; `deliver` and `run_job`, in `jobs/delivery/` and `jobs/durable/`.
"""
