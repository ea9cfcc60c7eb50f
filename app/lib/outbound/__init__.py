"""HTTP to addresses that customers name: `client` makes an `attempt`, which explains its failures.

`addresses` are vetted against SSRF; `dialing` resolves names, verifies certificates and opens a
`connection`, kept alive in a pool; `answers` are read.
"""
