"""Webhooks, the resource that a tenant manages.

`webhooks` has the operations, `webhook_changes` the consequences of a change, `webhook_secrets`
what is sealed: secrets, URL and headers; `signature_check` the signature debugger. `receiver_check`
sends a receiver valid and invalid requests, and grades its answers.
"""
