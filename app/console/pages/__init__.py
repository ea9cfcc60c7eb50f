"""The pages, each with its views; packages: `records`, `deliveries` and webhooks, `callers`.

`overview`, `rules`, `exports`, `audit`, `holds`, `jobs`, `settings`, `alerts`,
`search`, `time_zone`, `views`.
"""
