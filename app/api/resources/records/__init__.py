"""Records over HTTP: `records` with `record_schemas` and `record_list`, `share_links`.

By `bundle_access` one gets `bundles` and `evidence_packs`.
"""
