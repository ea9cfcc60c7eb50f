"""Keys, tokens and signatures.

`sealing` at rest, `signing` (Ed25519), `webhook_signing` (with receivers' mistakes), `randomness`,
and the texts of `api_keys` and `share_tokens`.
"""
