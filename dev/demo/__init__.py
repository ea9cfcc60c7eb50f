"""`make demo`: the main job on a real stack, every claim checked as an outsider would check it.

It uses the public HTTP API alone: what it shows, any caller can do.
`scene` speaks, claims and waits; `receivers` take what `webhooks` and a `session` cause; `proofs`
are checked, by `packs` offline.
"""
