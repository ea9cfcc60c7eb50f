"""Delivery of events to webhooks.

`event_types` and `events` create deliveries; `sweeping` finds due lanes, `claims` leases rows,
`request_headers` signs, `retries` judges an attempt, `failures` fingerprints it, `outcomes` records
it. `cancelling` and `disabling` end deliveries; `accounting` reconciles accepted events with
outcomes. `lanes/` holds lane state, `history/` the reads.
"""
