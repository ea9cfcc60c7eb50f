"""Reads of deliveries: `delivery_history` of one, with its attempts; `delivery_list` by filters.

`event_history` has an event's decisions and deliveries, and says what became of it.
`failure_groups` counts failures by cause, except where later replays supersede them; `catch_up` is
the feed by sequence, `event_feed` that of all events.
"""
