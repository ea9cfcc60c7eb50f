"""What several tests share.

`faults` waits, sets clocks and makes a Valkey fail; `secrets` has the master key, `spans`
makes those of OpenTelemetry. `servers/` and
`programs/` are what tests start, `callers/` use the API, `workers/` run actors in this process,
`evidence/` has the log, audit chains and witnesses, and `database/` looks at the tables.
"""
