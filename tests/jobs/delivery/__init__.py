"""The worker sends: lanes, the flusher, the sweep."""
