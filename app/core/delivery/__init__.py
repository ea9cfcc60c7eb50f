"""From an event to its outcome.

`event_types` and `events` begin; `sweeping` finds what is due, `claims` leases it,
`request_headers` signs it, `retries` judges an attempt, `failures` classifies, `outcomes` records
it. `cancelling` and `disabling` end it; `accounting` compares what was accepted with what became of
it. `lanes/` has a lane's state, `history/` what is read back.
"""
