"""Writing responses: `json_responses`, `conditional`, `prometheus`.

`long_poll` waits for a job; `conditional` handles ETags and ranges; `renderings` caches exports;
`truncated_stream` ends a stream that fails midway.
"""
