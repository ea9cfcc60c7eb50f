"""A step that a record holds."""

STEP = {
    "name": "look up the order",
    "kind": "tool",
    "started_at": "2026-01-31T12:00:00Z",
    "ended_at": "2026-01-31T13:00:00.5+01:00",
    "status": "ok",
}
