"""Writing responses: `answers` (JSON, ETags, ranges, cached exports), and `long_poll` for waits.

`prometheus` with `prometheus_gauges` writes `/metrics`.
"""
