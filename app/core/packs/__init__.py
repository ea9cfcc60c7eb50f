"""Evidence packs: built by a durable job, stored as long as their bundle, exported and audited.

`pack_requests` ask for one, `building` chooses its evidence and builds it with `further_files`,
`store` keeps it. `session_packs` are of whole sessions, kept by `session_store`.
"""
