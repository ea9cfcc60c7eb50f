"""Who may call, how often and how much at once: `auth`, `rate_limit`, `bulkhead`."""
