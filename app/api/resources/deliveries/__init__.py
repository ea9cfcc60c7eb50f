"""Deliveries over HTTP: `deliveries` of one webhook, `tenant_deliveries` of all, bulk `replays`.

`stats` counts traffic by the hour. `delivery_schemas` describes deliveries, `list_schemas`
filters, pages and groups, `replay_schemas` bulk replays.
"""
