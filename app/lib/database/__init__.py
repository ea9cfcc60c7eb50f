"""Around the driver: an engine with its `pool`, a `replica` for reads, and a `synced_pipeline`."""
