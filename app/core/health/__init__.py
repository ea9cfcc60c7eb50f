"""Health of the service: `parts`, their `probes`, and `readiness`, which keeps what they found.

`database_state` proves that the database takes writes, `objects` that the object store answers.
`gauges` are the figures of `/metrics`, with `lane_gauges` those of lanes, `tenant_figures` those of
each tenant.
"""
