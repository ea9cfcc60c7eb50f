"""Records: what an agent did, signed, searchable, and kept for as long as its tenant says.

`records` stores: `steps`, `storage`, `bundles`, `search_index`. Read by `contents` and `search`;
opened by `share_links` and `anonymous_access`; ended by `retention` and `expiry`.
"""
