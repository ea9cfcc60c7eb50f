"""Leaf modules, which import nothing of the service.

`gateway/`, `forwarded`, `rates`, `fair_shares` serve requests; `strict_json`, `canonical_json`,
`indented_json`, `text_sanitizer` read and write text; `crypto/` signs; `outbound/` and `mail/` send
with a `breaker`; `openid_connect` signs people in; `stores`, `database/` and `objects/` are of
stores; `group_commit` joins what threads ask at once; `metric_registry` counts, `repeater` runs
threads, `process` is its own; `json_lines` logs.
"""
