"""Records of what agents did: signed, searchable, with retention by tenant.

`records` stores: `steps`, `storage`, `bundles`, `signing`, and `intake` for many at once. Read by
`contents`, `following`, `activity` and `search`, whose index is in `record_words`; opened by
`share_links` and `anonymous_access`; ended by `retention` and `expiry`.
"""
