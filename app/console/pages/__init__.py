"""The pages, each with its views; those of `records` and agents are a package.

`sign_in`, `overview`, `deliveries`, `replays`, `webhooks`, `receivers`, `findings`, `rules`,
`audit`, `keys`, `jobs`, `settings`, `search`.
"""
