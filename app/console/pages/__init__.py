"""The pages, each with its views.

`sign_in`, `overview`, `deliveries`, `delivery`, `replays`, `webhooks`, `receivers`, `records`,
`findings`, `audit`, `keys`, `jobs`, `settings`, `mail`, `search`.
"""
