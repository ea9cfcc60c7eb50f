"""Deliveries over HTTP: `deliveries`, `delivery_schemas`, bulk `replays`, `stats` by the hour.

The `signature_debugger` says why a receiver refuses one.
"""
