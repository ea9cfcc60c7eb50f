"""Deliveries over HTTP: `deliveries`, `delivery_schemas`, bulk `replays`, `stats` by the hour."""
