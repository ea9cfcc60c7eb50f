"""Delivery of events to webhooks.

`event_types` and `events` create deliveries; `sweeping` finds due lanes, `claims` leases rows,
`request_headers` signs, `retries` judges an attempt, `outcomes` records it. `cancelling` ends
deliveries, and disables webhooks; `accounting` reconciles accepted events with outcomes, `hours`
counts them. `lanes/` holds lane state, `history/` the reads.
"""
