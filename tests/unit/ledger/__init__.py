"""Merkle trees, tiles, notes and checkpoints; `tile_entries` has a log's entries."""
