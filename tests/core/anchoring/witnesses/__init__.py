"""Witnesses that cosign the log's checkpoints; `choosing` is the evidence that comes of it."""
