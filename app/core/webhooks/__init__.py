"""Webhooks as their owner sees them: URL, secrets, event types, test fire, and being disabled."""
