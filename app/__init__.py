"""record-service: signed, provable records of what AI agents did for people.

Callers reach it through `asgi` and `web`, operators through `manage/`; both read `settings`
(`setting_values`) and write `logs`. `database` commits, then `queue` rings workers. `counters` sums
the `metrics`; `heartbeats`; `migrations` with `sql/`.
`clock`, `ids` and `errors` serve all.
"""
