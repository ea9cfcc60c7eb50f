"""A turn at a lane: `lane_run` claims a `batch`, `attempt` sends rows, `attempt_log` logs them."""
