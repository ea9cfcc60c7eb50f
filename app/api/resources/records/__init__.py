"""Over HTTP: `records`, `record_schemas`, `record_list`, `share_links`.

`bundle_access` admits to `bundles` and `evidence_packs`.
"""
