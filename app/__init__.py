"""record-service: signed, provable records of what AI agents did for people.

The web application enters by `asgi` and `web`, an operator by `manage/`. Both read `settings` (by
`setting_values`) and set up `logs`. `database` commits; `queue` rings the worker, through
`wakeup_batcher` after a commit. `metrics` names what `counters` adds up, `heartbeats` says who is
alive. `migrations` brings a database to this release; `sql/` has the database's functions. `clock`,
`ids` and `errors` serve all.
"""
