"""Deliveries over HTTP: `deliveries` of one webhook, `tenant_deliveries` of all, bulk `replays`.

`stats` counts traffic by the hour. `delivery_schemas` has what a delivery is, `list_schemas`
filters, pages and groups, `replay_schemas` what to send again.
"""
