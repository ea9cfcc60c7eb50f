"""Over HTTP: `records` and their `rules`, `share_links`; by `bundle_access` what a bundle gives.

These are `bundles` and `evidence_packs`.
"""
