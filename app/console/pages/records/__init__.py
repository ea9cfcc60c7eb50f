"""Pages of what agents did: `agents`, their `sessions` and `records`, `traces` that came."""
