"""Pages of `webhooks`, of `events` and their `deliveries`, of `replays`.

`receivers` has the tools for those who write one: its check, the signature debugger.
"""
