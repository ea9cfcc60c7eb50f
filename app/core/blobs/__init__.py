"""Bytes outside PostgreSQL: `store` names and puts objects, `reading` fetches them.

`rows` are those that name them. The invariant: an object exists before any row names it, and is
erased after none does.
"""
