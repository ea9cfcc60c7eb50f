"""Records of what agents did: signed, searchable, with retention by tenant.

`signing` signs and `intake` stores `records`: `storage`, `bundles`. Read by `contents`,
`following`, `activity` and `search`, whose index is in `record_words`; opened by `share_links` and
`anonymous_access`; ended by `retention` and `expiry`, kept by `holds`.
"""
