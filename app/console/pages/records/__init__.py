"""Pages of `agents`, their `sessions`, `records` and `findings`, and `traces` that came."""
