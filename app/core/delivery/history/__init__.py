"""Deliveries read back: `decisions`, `event_history`, `delivery_history`, `delivery_attempts`.

`catch_up` is the feed by sequence.
"""
