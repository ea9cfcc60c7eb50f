"""Actors, the broker and the worker.

`sample_worker`, `hanging_worker` and `reseal_process` are processes that tests start; `digesting`
and its `digest_process` make the digests of `digests/`.
"""
