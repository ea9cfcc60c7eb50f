"""The hash chain, the Merkle tree, tiles and notes."""
