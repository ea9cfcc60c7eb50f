"""A worker's work, done in this process when a test says so.

`worlds` have a tenant and a runtime, `lanes` are made ready, `delivering` takes turns at them, and
`expiring` removes what is due. A `monitored` service has a web process and a scheduler too.
"""
