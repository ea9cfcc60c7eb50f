"""Records, bundles, evidence packs and share links.

`steps` has what records hold, `link_entries` the audit entries of share links.
"""
