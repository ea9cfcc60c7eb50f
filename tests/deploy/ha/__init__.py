"""`make test-ha`: the service on servers that have a second; each part is killed under load.

`hosts` are three network namespaces, `cluster` the servers on them, an `ordeal` what they suffer.
"""
