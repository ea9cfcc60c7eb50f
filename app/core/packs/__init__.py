"""Evidence packs: built by a durable job, kept as long as their bundle, given out and audited.

`requests` asks for one, `choosing` its evidence, `building` builds it, `store` keeps it.
"""
