"""Spans of OpenTelemetry, read and mapped: no I/O.

`protobuf` reads the one encoding, `otlp_json` the other, both into a `span`; `export` reads a whole
request and writes its answers; `runs` says which spans make a record, `mapping` maps them to it,
`verdicts` finds what guardrails and evaluations said and what people decided.
"""
