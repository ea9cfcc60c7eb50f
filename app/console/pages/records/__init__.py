"""Pages of what agents did: `agents`, their `sessions`, `records` and `findings`, `traces` that came."""
