"""A turn at a lane: `lane_run` claims rows, `attempt` sends and logs them."""
