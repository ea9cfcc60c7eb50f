"""The pages: `sign_in`, `deliveries`, `delivery`, `replays`, `webhooks`, `receivers`, `keys`."""
