"""Leaf helpers: each does one thing with bytes or sockets, and none imports anything of ours.

`gateway/`, `forwarded`, `rates` and `fair_shares` serve requests; `strict_json`, `canonical_json`
and `text_sanitizer` read and write text; `crypto/` seals and signs; `outbound/` and `mail/` send,
with a `breaker`; `redis_reasons` names failures; `database/` is around the driver;
`metric_registry` counts, `process_memory` measures; a `repeater` works in the background;
`parent_death` ends processes without a leader, and `json_lines` writes what a leader logs.
"""
