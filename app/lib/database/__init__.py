"""Around the driver: an engine with its `pool`, and a `synced_pipeline`."""
