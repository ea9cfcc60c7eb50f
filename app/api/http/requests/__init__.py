"""Reading requests: `headers` and `parsing`; `large_bodies` bounds the work on large bodies."""
