"""The pages, each with its views.

`overview` (with the search box and saved views), `records`, `agents` (sessions, traces), `rules`,
`deliveries`, `webhooks`, `jobs` (replays), `audit` (exports, holds), `settings` (mails, keys),
`sign_in` (people), `operator`.
"""
