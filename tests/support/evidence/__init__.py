"""The log, the chains whose heads it has, and those who hold both to account.

`logs` is a log alone; `anchoring` and `chains` are tenants whose heads it has. `witnesses` cosign,
each a server, and a `witnessed` log has two. `packing` builds evidence packs and takes them apart;
`verifying` runs `verify.py`.
"""
