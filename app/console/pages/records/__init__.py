"""Pages of `agents`, their sessions and traces, of `records` and `findings`."""
