"""Leaf modules, which import nothing of the service.

`gateway/`, `forwarded`, `rates` and `fair_shares` serve requests; `strict_json`, `canonical_json`,
`indented_json` and `text_sanitizer` read and write text; `crypto/` seals and signs; `outbound/` and
`mail/` send with a `breaker`; `redis_reasons` names failures; `group_commit` runs items together;
`database/` wraps the driver, `openid_connect/` signs people in;
`metric_registry` counts, `repeater` runs threads, `process` is what one does about itself;
`group_commit` joins what threads ask at once; `json_lines` logs.
"""
