"""Records whose packs are asked for, and built when a test says so."""

from tests.support.evidence.packing import packer

__all__ = ["packer"]
