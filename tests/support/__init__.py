"""What several tests share.

`faults` waits, sets clocks and harms a Valkey; `secrets` has the master key. The folders are
rooms: `servers/` and `programs/` are what tests start, `callers/` use the API, `workers/` do its
work, `evidence/` holds what is recorded to account, and `database/` looks underneath.
"""
