"""Around the driver: `closed_connections` in the pool, a `synced_cursor` for pipelines."""
