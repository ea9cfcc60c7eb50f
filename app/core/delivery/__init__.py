"""From an event to its outcome: what is due on which lane, who sends it, and what became of it.

`event_types` and `events` begin; `sweeping` finds what is due, `claims` leases it,
`request_headers` signs it, `retries` judges an attempt, `failures` classifies, `outcomes` records
it. `cancelling` and `disabling` end it;
`accounting` balances the books. `lanes/` has a lane's state, `history/` what is read back.
"""
