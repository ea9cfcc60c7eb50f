"""Leaf modules: they import no other module of the service.

`gateway/`, `forwarded`, `rates` and `fair_shares` serve requests; `strict_json`, `canonical_json`,
`indented_json` and `text_sanitizer` read and write text; `crypto/` seals and signs; `outbound/` and
`mail/` send with a `breaker`; `redis_reasons` names failures; `database/` wraps the driver;
`metric_registry` counts, `process_memory` measures, `repeater` runs background threads;
`imports` starts programs, `parent_death` ends orphans, `json_lines` writes logs.
"""
