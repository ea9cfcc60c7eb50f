"""Webhooks as their owner sees them.

`webhooks` has the verbs, `webhook_changes` what a change entails, `webhook_secrets` the secrets,
`signature_check` the signature debugger. `receiver_check` sends a receiver right and wrong
requests, `receiver_grades` judges its answers.
"""
