"""Access control: `auth` checks API keys and roles, `rate_limit` counts requests."""
