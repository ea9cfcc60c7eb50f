"""Pages of `webhooks`, of `deliveries` and their events, of `replays`.

`receivers` has the tools for those who write one: its check, the signature debugger.
"""
