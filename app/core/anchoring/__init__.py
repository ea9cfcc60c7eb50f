"""Anchoring: what holds the audit chains, and the log they are anchored in, from outside.

`heads` puts heads of chains into the log. `checkpoint_round` chooses a checkpoint, `external_post`
sends it: `timestamping` to an authority, `cosigning` to witnesses (`tlog_witness`, `quorum`,
`gate`). `evidence`, with `checkpoint_cache` and `evidence_search`, chooses what proves most for
`anchors`. `monitor` opens and closes `incidents`; `status` reports.
"""
