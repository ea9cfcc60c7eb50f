"""What the steps of a record say: how each went, and the models that they name."""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

# What answered, what was asked for (OpenTelemetry), and OpenInference's name for either.
_MODELS = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
MOST_MODELS = 100


class StepStatus(enum.StrEnum):
    """Statuses of a step, as OpenTelemetry defines them."""

    OK = "ok"
    ERROR = "error"
    UNSET = "unset"


def models(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of models in the attributes of steps, sorted, the first hundred."""
    told = (step["attributes"].get(name) for step in steps for name in _MODELS)
    return sorted({name for name in told if isinstance(name, str) and name})[:MOST_MODELS]
