"""Deliveries on their way to receivers.

`deliveries` measures how many a second, `latency` how soon, `fan_out` what many webhooks cost;
`neighbours` beside receivers that hang, `slow` to receivers that answer late; `backlog` while many
wait, `replay` as many are sent again, `snapshot` beside an old one; `wal` is what
each writes, `growth` what each part takes at ten times the rate.
"""
