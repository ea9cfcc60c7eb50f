"""Anchoring: puts the heads of audit chains into the log, and the log under others' signatures.

`heads` adds leaves. `checkpoint_round` chooses a checkpoint and sends it:
`timestamping` to an authority, `cosigning` to witnesses (`quorum`).
`evidence` chooses the best proof for `anchors`.
`monitor` opens and closes `incidents`, and has the gate before publication.
"""
