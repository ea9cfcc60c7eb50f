"""Evidence packs of records and of whole sessions: one row each, built by a durable job.

`building` chooses evidence and builds what a `subject` is: `record_packs`, `session_packs`. `store`
keeps packs, `pack_requests` asks for one.
"""
