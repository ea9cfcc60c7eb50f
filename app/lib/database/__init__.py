"""Around the driver: `counted_pool` with its `closed_connections`, a `synced_cursor`."""
