"""Pages of what agents did: `agents`, their `sessions`, `records`, and `traces` that became such."""
