"""Over HTTP: `records`, `record_schemas`, `record_list`; `rules` over them; `share_links`.

`bundle_access` admits to `bundles` and `evidence_packs`.
"""
