"""Records: what an agent did, signed, searchable, and kept for as long as its tenant says.

`records` stores: `steps`, `storage`, `bundles`, `tokenizer`, `search_keys`, `search_index`. Read by
`contents`, `search` and `facets`; opened by `share_links` and `anonymous_access`; ended by
`retention` and `expiry`.
"""
