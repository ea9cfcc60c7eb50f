"""Alert rules and the dashboard, held against a running service and its faults.

`faults` and `log_faults` are what happens to it; `rules` are read by promtool.
"""
