"""HTTP to addresses that customers name: `client` makes an `attempt`.

`addresses` are vetted against SSRF, `resolver` and `dialing` open a `connection`, kept alive in a
pool; `certificates` are verified, `answers` read; `failures` explains.
"""
