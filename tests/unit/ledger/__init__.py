"""Merkle trees, tiles, notes and checkpoints.

`trees`, `tile_entries` and `note_examples` have what they are made of.
"""
