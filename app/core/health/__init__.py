"""What operators watch: `schema` and `readiness` behind `/readyz`, `gauges` for `/metrics`."""
