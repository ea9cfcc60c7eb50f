"""Whole services, and faults done to them.

`harness/` has the services, their traffic and the faults; the tests here and `soak` use it.
"""
