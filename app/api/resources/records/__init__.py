"""Over HTTP: `records`, `record_schemas`; `rules` over them; `share_links`, `holds`, `exports`.

`bundle_access` admits to `bundles` and `evidence_packs`.
"""
