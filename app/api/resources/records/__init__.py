"""Over HTTP: `records`, `share_links`; by `bundle_access` `bundles` and `evidence_packs`."""
