"""Keys, tokens and signatures.

`sealing` at rest, `signing` (Ed25519), `webhook_signing` (with receivers' mistakes), `timestamps` (RFC 3161), `randomness`, and the texts of `api_keys` and
`share_tokens`.
"""
