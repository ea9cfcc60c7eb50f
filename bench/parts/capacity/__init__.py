"""How much the processes take in, and what they cost.

`idle` measures them without requests, `accept` with as many as they take, `front_door` with spans
of exporters; `starvation` beside callers that take more than their share, `rules` beside rules that
do, `tenants` the watching beside many that rest, `preset` on a small database with little memory.
"""
