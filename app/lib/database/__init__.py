"""Around the driver: an `engine`, its `pool`, `closed_connections`, a `synced_pipeline`."""
