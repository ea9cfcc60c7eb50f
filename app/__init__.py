"""record-service: signed, provable records of what AI agents did for people.

`asgi` and `web` enter for callers, `manage/` for operators: by `settings` (`setting_values`) and
`logs`. `database` commits, then `queue` rings workers (`wakeup_batcher`). `metrics` names what
`counters` adds up; `heartbeats`; `migrations` with `sql/`. `clock`, `ids` and `errors` serve all.
"""
