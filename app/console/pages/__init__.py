"""The pages, each with its views.

`sign_in`, `overview`, `deliveries`, `replays`, `webhooks`, `receivers`, `records`,
`findings`, `audit`, `keys`, `jobs`, `settings`, `search`.
"""
