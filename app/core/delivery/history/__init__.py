"""Reads of deliveries: `decisions`, `event_history`, `delivery_history`, `delivery_attempts`.

`delivery_list` lists deliveries by `delivery_filters` and `subject_events`. `failure_groups` counts
failures by cause, except where `later_replays` supersede them. `delivery_summary` says what became
of one and when its next attempt is; `catch_up` is the feed by sequence, `event_feed` that of all
events; `hourly_stats` counts traffic, `backlog` what waited.
"""
