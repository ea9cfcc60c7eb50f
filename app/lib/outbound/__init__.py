"""HTTP to addresses that customers name: `client` makes an `attempt` under a `watchdog`.

`addresses` are vetted, `resolver` and `dialing` connect, `deadline_sockets` and `attempt_sockets`
bound it, `transport` speaks HTTP, `failures` explains.
"""
