"""Writing responses.

`json_responses` and `paging` write JSON, `problems` the errors (RFC 9457), `prometheus` metrics.
`long_poll` waits for a job; `conditional` answers ETags and ranges; `renderings` keeps what was
rendered; `truncated_stream` ends a stream that failed midway.
"""
