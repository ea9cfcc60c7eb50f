"""A rule in JSON: as it is now, as each version was, and how it fares."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from app.core.findings import Severity
from app.models import Rule, RuleVersion
from app.schemas import fields
from app.schemas.schema import AnswerSchema

MOST_CEL = 10_000
MAX_PER_HOUR = 100
LARGEST_MAX_PER_HOUR = 100_000
FAILING_FOR = timedelta(hours=24)
"""How long after its last error a rule is `failing`."""

# What is evaluated: a change of any makes a version. By the names of the API.
COLUMNS: Mapping[str, str] = {
    "name": "name",
    "on": "subject",
    "when": "condition",
    "severity": "severity",
    "title": "title",
    "detail": "detail",
    "dedupe": "dedupe",
    "max_per_hour": "max_per_hour",
}


class On(enum.StrEnum):
    """What a rule looks at."""

    RECORD = "record"
    STEP = "step"
    SESSION = "session"


class State(enum.StrEnum):
    """How a rule fares: `failing` for a day after an evaluation had an error."""

    ON = "on"
    OFF = "off"
    FAILING = "failing"


class ErrorSchema(AnswerSchema):
    """The newest error of a rule's version, and how many there were."""

    at = fields.Time()
    detail = fields.Text(1000)
    record_id = fields.Id("rec", allow_none=True)
    session_id = fields.Id("ses", allow_none=True)
    step = fields.Count(allow_none=True)
    count = fields.Count()


class MatchCountSchema(AnswerSchema):
    """Matches in this hour, and in this and the 23 hours before; withheld ones count too."""

    hour = fields.Count()
    day = fields.Count()


class RuleSchema(AnswerSchema):
    """A rule as it is now."""

    id = fields.Id("rul")
    name = fields.Text(200, description="The `rule` of its findings.", example="large-refund")
    on = fields.Choice(On)
    when = fields.Text(
        MOST_CEL,
        description="A condition in CEL, over what a rule on this sees (docs/rules.md).",
        example="content.amount > 1000 && record.kind == 'refund'",
    )
    severity = fields.Choice(Severity)
    title = fields.Text(500, example="{{record.principal}} was refunded {{content.amount}}")
    detail = fields.Text(MOST_CEL, allow_none=True)
    dedupe = fields.Text(
        MOST_CEL,
        allow_none=True,
        description="A text in CEL: of matches with the same text, one in 24 hours makes a "
        "finding.",
        example="record.principal",
    )
    max_per_hour = fields.Integer(
        1,
        LARGEST_MAX_PER_HOUR,
        description="Findings an hour; one more, when it has ended, counts the rest.",
        metadata={"default": MAX_PER_HOUR},
    )
    enabled = fields.Boolean()
    version = fields.Count()
    state = fields.Choice(State)
    last_error = fields.Object(ErrorSchema, allow_none=True)
    matches = fields.Object(MatchCountSchema)
    created_at = fields.Time()
    updated_at = fields.Time()


class VersionSchema(AnswerSchema):
    """A rule as it was from one change to the next, and who made it so."""

    version = fields.Count()
    name = RuleSchema.field("name")
    on = RuleSchema.field("on", attribute="subject")
    when = RuleSchema.field("when", attribute="condition")
    severity = RuleSchema.field("severity")
    title = RuleSchema.field("title")
    detail = RuleSchema.field("detail")
    dedupe = RuleSchema.field("dedupe")
    max_per_hour = RuleSchema.field("max_per_hour")
    created_by = fields.Text(100, example="key_019a0b7c3b0c7d1e8f2a3b4c5d6e7f80")
    created_at = fields.Time()


@dataclass(frozen=True)
class Watched:
    """A rule with its version, and its matches, at the database's `now`."""

    rule: Rule
    text: RuleVersion
    now: datetime
    hour: int
    day: int

    @property
    def id(self) -> UUID:
        """The rule's id."""
        return self.rule.id

    @property
    def state(self) -> State:
        """How it fares."""
        if not self.rule.enabled:
            return State.OFF
        erred = self.rule.erred_at is not None and self.rule.erred_at > self.now - FAILING_FOR
        return State.FAILING if erred else State.ON


def represent(watched: Watched) -> dict[str, Any]:
    """Return a rule's JSON representation, as GET returns it."""
    rule, text = watched.rule, watched.text
    error = None
    if rule.last_error_json is not None and rule.erred_at is not None:
        nothing = {"record_id": None, "session_id": None, "step": None}
        shown = {**nothing, **json.loads(rule.last_error_json)}
        error = ErrorSchema.of({"at": rule.erred_at, "count": rule.errors, **shown}, **shown)
    return RuleSchema.of(
        rule,
        **{name: getattr(text, column) for name, column in COLUMNS.items()},
        state=watched.state.value,
        last_error=error,
        matches={"hour": watched.hour, "day": watched.day},
    )


represent_version = VersionSchema.of
