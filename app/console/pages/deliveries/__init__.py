"""Pages of `webhooks`, of `deliveries` and their events, of `replays`."""
