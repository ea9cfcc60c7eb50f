"""Alert rules and the dashboard, held against a running service and its faults."""
