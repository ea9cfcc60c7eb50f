"""Writing responses: `answers` (JSON, ETags, ranges, cached exports), `long_poll`, `/metrics`."""
