"""Evidence packs: built by a durable job, stored as long as their bundle, exported and audited.

`requests` orders one, `choosing` its evidence, `building` builds it, `store` keeps it.
"""
