"""HTTP to addresses that customers name: `client` makes an `attempt` under a `watchdog`.

`addresses` are vetted against SSRF, `resolver` and `dialing` connect, `deadline_sockets` bound the
time, `transport` speaks HTTP, `failures` explains.
"""
