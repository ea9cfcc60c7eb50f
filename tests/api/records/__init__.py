"""Records, bundles, evidence packs and share links."""
