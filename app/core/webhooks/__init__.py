"""Webhooks as their owner sees them: `webhooks` (create, change, delete) and `webhook_secrets`."""
