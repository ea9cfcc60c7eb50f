"""HTTP to addresses that customers name: `client` makes an `attempt`.

`addresses` are vetted against SSRF, `resolver` and `dialing` open a `connection`, `certificates`
are verified, `answers` read, the `pool` keeps connections alive, `failures` explains.
"""
