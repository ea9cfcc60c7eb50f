"""The audit chain alone, in no log; `verifying` appends to one and verifies it."""
