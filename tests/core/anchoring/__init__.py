"""The log vouched for by others: heads, witnesses, timestamps, and the quorum (`gated`)."""
