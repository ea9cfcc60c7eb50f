"""Verifies audit chains against what the database's owner cannot rewrite.

`verifier` verifies one chain within a `time_budget`, by `checks/`; `report` is the answer. `jobs`
does it in the background, with a `result_cache`; `daily` for all chains, with its `daily_state` and
`unknown_chains`. `alerts` reports breaks; `export` streams a chain.
"""
