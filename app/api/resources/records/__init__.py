"""Records over HTTP: `records` and `record_schemas`, then the routes of a record's bundle.

`bundle_access` controls access to a bundle. `bundles`, `exports` and `evidence_packs` (with
`pack_download`) serve it, within the memory that `in_flight` shares out. `share_links` shares it.
"""
