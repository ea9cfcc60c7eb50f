"""Pages of `agents`, their sessions and traces, and of `records` and findings."""
