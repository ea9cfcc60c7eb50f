"""Sessions that end: `idle_sessions` completes them, `statements` seals them."""
