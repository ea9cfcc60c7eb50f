"""Witnesses that cosign the log's checkpoints, and the evidence that comes of it."""
