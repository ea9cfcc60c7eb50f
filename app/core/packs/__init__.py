"""Evidence packs of records and of whole sessions: one row each, built by a durable job.

`building` chooses evidence and builds what `subjects` are; `store` keeps packs, `pack_requests`
asks for one.
"""
