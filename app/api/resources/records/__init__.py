"""Over HTTP: `records`, `record_schemas`, `record_list`; `rules` over them; `share_links`, `holds`.

`bundle_access` admits to `bundles` and `evidence_packs`; `session_evidence` is of whole sessions.
"""
