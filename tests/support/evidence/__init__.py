"""The log, the audit chains that are anchored in it, and what verifies both.

`logs` is a log alone, and its backup; `anchoring` and `chains` are tenants whose heads it has.
`witnesses` cosign, each a server. `packing` builds evidence packs and takes them apart, `exporting`
period exports; `objects` looks into an object store; `verifying` runs `verify.py`; `signers`
certify signing keys.
"""
