"""The worker builds evidence packs."""
