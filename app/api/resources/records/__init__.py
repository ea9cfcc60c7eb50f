"""Records over HTTP: `records` with `record_schemas` and `record_list`, their `rules`.

`share_links` open them; by `bundle_access` one gets `bundles` and `evidence_packs`.
"""
