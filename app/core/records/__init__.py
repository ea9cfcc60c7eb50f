"""Records of what agents did: signed, searchable, with retention by tenant.

`signing` signs and `intake` stores `records` with their `bundles`. Read by `activity` and `search`,
which has the index of their words, too; opened by `share_links`; ended by `retention`,
`expiry` and `finding_expiry`, kept by `holds`. `statements` seal what sessions held.
"""
