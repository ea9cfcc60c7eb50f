"""Actors, the broker and the worker.

`sample_worker` is a process that tests start; `digesting` and its `digest_process` make the digests
of `digests/`.
"""
