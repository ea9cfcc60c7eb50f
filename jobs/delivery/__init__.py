"""One lane's turn: `bulkhead`, `lane_run`, `turn`, `batch`, `attempt`, `attempt_log`, `flusher`."""
