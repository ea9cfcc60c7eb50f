"""Actors, the broker and the worker.

`sample_worker` is a process that tests start; `digesting` makes the digests of `digests/`.
"""
