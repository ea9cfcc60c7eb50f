"""The steps of a record, in the form that is signed."""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from app.clock import rfc3339
from app.evidence.bundle import Event, Step


class StepStatus(enum.StrEnum):
    """Statuses of a step, as OpenTelemetry defines them."""

    OK = "ok"
    ERROR = "error"
    UNSET = "unset"


def as_signed(steps: Iterable[Mapping[str, Any]]) -> list[Step]:
    """Return steps as JSON-ready objects: times as RFC 3339, every field present."""
    return [
        Step(
            name=step["name"],
            kind=step["kind"],
            started_at=rfc3339(step["started_at"]),
            ended_at=rfc3339(step["ended_at"]),
            status=step["status"],
            attributes=step["attributes"],
            inputs=step["inputs"],
            outputs=step["outputs"],
            events=[
                Event(name=event["name"], at=rfc3339(event["at"]), attributes=event["attributes"])
                for event in step["events"]
            ],
        )
        for step in steps
    ]
