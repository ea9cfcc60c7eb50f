"""Bytes outside PostgreSQL: `places` names each object, `store` keeps them.

`writing` puts them there before the `rows` that name them, and `reading` fetches them.

The invariant: an object exists before any row names it, and is erased after none does.
"""
