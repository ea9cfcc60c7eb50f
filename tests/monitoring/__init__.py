"""Alert rules and the dashboard, held against a running service and its faults.

`faults`, `log_faults` and `trace_faults` are what happens to it; `rules` are read by promtool.
"""
