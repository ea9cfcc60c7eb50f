"""`make demo`: the main job on a real stack, every claim checked as an outsider would check it.

It uses the public HTTP API and nothing else of the service: what it shows, any caller can do.
`scene` sets up `api`, `receivers` and `arrivals`; `session`, `records`, `webhooks`, `mail`,
`anchors`, `proofs`, `packs`, `outsider` and `left_to_do` play; `telling` prints.
"""
