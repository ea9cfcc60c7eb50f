"""Reading requests: `headers`, `parsing`, `content_coding`; `large_bodies` bounds large work."""
