"""Webhooks, their secrets, event types and figures."""
