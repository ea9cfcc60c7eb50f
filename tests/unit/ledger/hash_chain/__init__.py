"""The audit chain's hashes; `chains` makes and checks chains."""
