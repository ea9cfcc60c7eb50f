"""Health of the service: `parts`, their `probes`, and `readiness`, which keeps what they found.

`database_state` proves that the database takes writes. `gauges` are the figures of `/metrics`,
`tenant_figures` those of each tenant.
"""
