"""The log vouched for by others: heads of chains in it, witnesses, timestamps, and the quorum (`gated`)."""
