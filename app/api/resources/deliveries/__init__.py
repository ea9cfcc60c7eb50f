"""Deliveries over HTTP: `deliveries`, `delivery_schemas`, bulk `replays`."""
