"""Reads of deliveries: `decisions`, `event_history`, `delivery_history`, `delivery_attempts`.

`delivery_filters` and `subject_events` select deliveries, `tenant_history` lists those of all
webhooks. `failure_groups` counts failures by cause, except where `later_replays` supersede them.
`standing` describes a delivery's next attempt; `catch_up` is the feed by sequence, `event_feed`
that of all events; `hourly_stats` counts traffic.
"""
