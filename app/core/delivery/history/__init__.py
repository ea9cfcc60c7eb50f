"""Deliveries read back: `decisions`, `event_history`, `delivery_history`, `delivery_attempts`.

`delivery_filters` and `subject_events` select them, `tenant_history` lists those of all webhooks,
`failure_groups` counts their failures by cause but for `later_replays`, `standing` says what comes
next of one; `catch_up` is the feed by sequence, `event_feed` that of all events; `hourly_stats`
counts traffic.
"""
