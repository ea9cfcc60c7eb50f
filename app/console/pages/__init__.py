"""The pages, each with its views; packages: `records` and agents, `deliveries` and webhooks.

`sign_in`, `people`, `overview`, `findings`, `rules`, `exports`, `audit`, `holds`, `keys`, `jobs`,
`settings`, `alerts`, `operator`, `search`, `time_zone`.
"""
