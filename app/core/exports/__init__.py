"""Period exports: `exports` orders, lists and deletes them; `building` is their durable job.

Its steps are `turns`. `reading` finds the leaves of a stretch of the log, `parts` stores the bytes,
in `objects` where an object store is set.
"""
