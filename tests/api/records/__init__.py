"""Records, bundles, evidence packs and share links; `steps` has what records hold."""
