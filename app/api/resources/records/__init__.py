"""Records over HTTP: `records` and `record_schemas`, then what is made of a bundle.

`bundle_access` decides who may read a bundle; `bundles`, `exports` and `evidence_packs` (with
`pack_download`) answer it, within the memory that `in_flight` shares out; `share_links` opens it to
others.
"""
