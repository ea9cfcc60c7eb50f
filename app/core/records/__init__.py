"""Records of what agents did: signed, searchable, with retention by tenant.

`records` stores: `steps`, `storage`, `bundles`. Read by `contents`, `following` and `search`;
opened by `share_links` and `anonymous_access`; ended by `retention` and `expiry`.
"""
