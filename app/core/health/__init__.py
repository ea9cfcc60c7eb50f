"""What operators watch: the `readiness` state behind `/readyz`, and `gauges` for `/metrics`."""
