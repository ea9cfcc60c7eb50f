"""The pages: `sign_in`, `deliveries`, `delivery`, `replays`, `webhooks`, `keys`."""
