"""The pages, each with its views; packages: `records` and `deliveries`.

`sign_in`, `people`, `overview`, `rules`, `exports`, `audit`, `holds`, `keys`, `jobs`,
`settings`, `alerts`, `operator`, `search`, `views`, `time_zone`.
"""
