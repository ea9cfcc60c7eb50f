"""Actors, the broker and the worker."""
