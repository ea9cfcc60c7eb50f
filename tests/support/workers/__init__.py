"""A worker's work, done in this process when a test says so.

`worlds` have a tenant and a runtime, `lanes` prepares lanes, `delivering` sends what is due, and
`expiring` deletes due bundles. A `monitored` service has a web process and a scheduler too.
"""
