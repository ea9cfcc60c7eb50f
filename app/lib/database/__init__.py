"""Around the driver: an engine with its `pool` and pipelines, and a `replica` for reads."""
