"""Webhooks, their secrets, event types and figures; `audited` reads their audit entries."""
