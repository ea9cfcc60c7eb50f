"""The audit chain and its verification."""
