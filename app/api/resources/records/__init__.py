"""Over HTTP: `records`, `record_list`, `share_links`; by `bundle_access` `bundles`, `evidence_packs`."""
