"""A turn at a lane: `lane_run` claims rows, `attempt` sends them, `attempt_log` logs them."""
