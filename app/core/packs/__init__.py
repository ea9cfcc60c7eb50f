"""Evidence packs: built by a durable job, stored as long as their bundle, exported and audited.

`pack_requests` ask for one, `building` builds it from `pack_evidence`, `store` keeps it.
"""
