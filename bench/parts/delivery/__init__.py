"""Deliveries on their way to receivers.

`deliveries` is how many a second, `latency` how soon; `neighbours` is beside receivers that hang,
`slow` with receivers that take long; `backlog` is many that wait, `replay` many that are sent
again.
"""
