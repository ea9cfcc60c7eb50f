"""Period exports: `exports` orders, lists and deletes them; `building` is their durable job.

`reading` finds the leaves of a stretch of the log; a step writes `parts`, in objects where there is
a store.
"""
