"""Deliveries on their way to receivers.

`deliveries` and `lanes` measure how many a second, `latency` how soon, `fan_out` many webhooks,
`wal` what is written, `growth` what a rate takes; `neighbours` beside receivers that hang, `slow`
to late ones; `backlog` while many wait, `snapshot` beside an old one.
"""
