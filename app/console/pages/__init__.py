"""The pages, each with its views; packages: `records`, `deliveries` and webhooks, `callers`.

`overview`, `rules`, `exports`, `audit`, `holds`, `jobs`, `settings` (also digests, alerts, the
time zone), `search`, `views`.
"""
