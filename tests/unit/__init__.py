"""Units that need no server, or one of their own."""
