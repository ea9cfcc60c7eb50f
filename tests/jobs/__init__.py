"""Actors, the broker and the worker.

`sample_worker` and `hanging_worker` are processes that tests start; `digesting` and its
`digest_process` make the digests of `digests/`.
"""
