"""A worker's work, done in this process when a test says so.

An `outbox` has a tenant's webhooks and deliveries, `worlds` adds a worker's runtime that sends what
is due, and `expiring` deletes due bundles. A `monitored` service has a web process and a
scheduler too.
"""
