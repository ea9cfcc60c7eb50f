"""The log lines and counts of deliveries; `observed` is a worker with what it writes."""
