"""Rules over HTTP: write, try on the past, switch on, and let them judge the past."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app.api.http.auth import ADMIN_TENANT, READ_TENANT, WRITE_TENANT
from app.api.http.idempotency import once, sent_key
from app.api.http.paging import MAX_LIMIT
from app.api.http.routes import Routes
from app.api.http.services import caller, reads_objects, services, transaction
from app.core.jobs import control as job_control
from app.core.jobs.control import JobSchema
from app.core.rules import library, rules, scanning
from app.core.rules.language import RuleText
from app.core.rules.library import ExampleSchema
from app.core.rules.rule_schemas import (
    MAX_PER_HOUR,
    On,
    RuleSchema,
    VersionSchema,
    represent,
    represent_version,
)
from app.core.rules.scanning import LARGEST_TEST, MOST_AT_ONCE, ResultSchema, Wanted
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Routes(
    "rules",
    __name__,
    url_prefix="/v1/rules",
    description="Conditions over records, steps and sessions that make findings.",
)

_PATTERN = "Text; `{{expression}}` in it is evaluated."


class RuleChangeSchema(Schema):
    """A change to a rule; fields not sent stay."""

    name = RuleSchema.field("name")
    on = RuleSchema.field("on")
    when = RuleSchema.field("when")
    severity = RuleSchema.field("severity")
    title = RuleSchema.field("title", description=_PATTERN)
    detail = RuleSchema.field("detail", description=_PATTERN)
    dedupe = RuleSchema.field("dedupe")
    max_per_hour = RuleSchema.field("max_per_hour")
    enabled = RuleSchema.field("enabled")


class NewRuleSchema(RuleChangeSchema):
    """A rule to create; it is off unless `enabled`."""

    name = RuleSchema.field("name", required=True)
    on = RuleSchema.field("on", required=True)
    when = RuleSchema.field("when", required=True)
    severity = RuleSchema.field("severity", required=True)
    title = RuleSchema.field("title", required=True, description=_PATTERN)
    max_per_hour = RuleSchema.field("max_per_hour", load_default=MAX_PER_HOUR)
    enabled = fields.Boolean(load_default=False, metadata={"default": False})


class RuleTestSchema(RuleChangeSchema):
    """A rule to try, and on what: some records, or the newest of a time."""

    on = RuleSchema.field("on", required=True)
    when = RuleSchema.field("when", required=True)
    title = RuleSchema.field("title", required=True, description=_PATTERN)
    record_ids = fields.Items(fields.Id("rec"), min_items=1, max_items=MOST_AT_ONCE)
    since = fields.Time()
    until = fields.Time()
    limit = fields.Integer(
        1, LARGEST_TEST, load_default=MOST_AT_ONCE, metadata={"default": MOST_AT_ONCE}
    )

    def check(self, sent: Mapping[str, Any]) -> None:
        """Refuse records beside a time, and records for a rule on sessions."""
        if "record_ids" in sent and sent.keys() & {"since", "until", "limit"}:
            raise ValidationError("Send record_ids, or since, until and limit.", "record_ids")
        if "record_ids" in sent and sent.get("on") == On.SESSION:
            raise ValidationError("A rule on sessions looks at no records.", "record_ids")


class RuleBackfillSchema(Schema):
    """The time to judge, and how fast."""

    since = fields.Time(required=True)
    until = fields.Time(required=True, description="Exclusive, and not in the future.")
    rate = fields.Integer(1, 10_000, description="Records a second; absent: as fast as it goes.")
    dry_run = fields.Boolean(load_default=False, description="Count, and make no finding.")


class RuleExamplesSchema(AnswerSchema):
    """The library."""

    data = fields.Items(fields.Object(ExampleSchema), max_items=MAX_LIMIT)


@blp.serves("POST", ADMIN_TENANT, RuleSchema, 201, takes=NewRuleSchema)
def create(body: dict[str, Any]) -> Response:
    """Create a rule

    Its expressions are compiled: each that is refused is named with its `line` and `column`. It
    judges what is created while it is enabled.
    """
    rules.check(services().evaluators, body)
    with transaction() as session:
        rules.prepare(session, caller().tenant_id)
    return once(201, lambda session: represent(rules.create(session, caller(), body)))


@blp.lists("", READ_TENANT, RuleSchema, represent=represent)
def list_rules(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """List rules, newest first"""
    return rules.rows(session, caller().tenant_id, *where)


@blp.serves("GET /examples", READ_TENANT, RuleExamplesSchema)
def examples() -> dict[str, Any]:
    """List ready rules

    Each is the body of a POST, off, with records or a session that it matches and does not match.
    """
    return {"data": library.examples()}


@blp.serves("GET /<rule_id>", READ_TENANT, RuleSchema)
def read(rule_id: UUID | None) -> dict[str, Any]:
    """Read a rule"""
    with transaction() as session:
        return represent(rules.find(session, caller().tenant_id, rule_id))


@blp.serves("PATCH /<rule_id>", ADMIN_TENANT, RuleSchema, takes=RuleChangeSchema)
def change(body: dict[str, Any], rule_id: UUID | None) -> dict[str, Any]:
    """Change a rule, or switch it on or off

    Fields not sent stay. A change of anything but `enabled` makes a new version, which judges what
    is created from then on.
    """
    version = compiled(rule_id, body)
    with transaction() as session:
        return represent(rules.change(session, caller(), rule_id, body, version))


def compiled(rule_id: UUID | None, body: Mapping[str, Any]) -> int | None:
    """Check the expressions of a changed rule; return the version that they were checked with."""
    if not body.keys() & {"on", "when", "title", "detail", "dedupe"}:
        return None
    with transaction() as session:
        before = represent(rules.find(session, caller().tenant_id, rule_id))
    rules.check(services().evaluators, {**before, **body})
    return int(before["version"])


@blp.serves("DELETE /<rule_id>", ADMIN_TENANT, None, 204)
def delete(rule_id: UUID | None) -> None:
    """Delete a rule

    Its versions stay readable, and its name may be used again.
    """
    with transaction() as session:
        rules.delete(session, caller(), rule_id)


@blp.lists(
    "/<rule_id>/versions",
    READ_TENANT,
    VersionSchema,
    represent=represent_version,
    position=lambda each: each.version,
    endpoint="versions",
)
def versions(
    session: Session, args: Mapping[str, Any], *where: Any, rule_id: UUID | None
) -> Sequence[Any]:
    """List a rule's versions, newest first, also of one that was deleted"""
    return rules.versions(session, caller().tenant_id, rule_id, *where)


@blp.serves(
    "POST /test",
    WRITE_TENANT,
    ResultSchema,
    takes=RuleTestSchema,
    errors=(404,),
    also={202: JobSchema},
)
def test(body: dict[str, Any]) -> Response | dict[str, Any]:
    """Try a rule on the past

    Nothing is stored, and no finding made. Up to 100 records are answered at once; more are a job,
    whose `progress` has the same members.
    """
    sent_key()
    rules.check(services().evaluators, body)
    text, wanted = tried(body)
    if wanted.limit > MOST_AT_ONCE:
        return once(
            202,
            lambda session: job_control.represent(
                scanning.start_test(session, caller().tenant_id, text, wanted)
            ),
        )
    return tried_now(text, wanted)


def tried(body: Mapping[str, Any]) -> tuple[RuleText, Wanted]:
    """Return the rule of a test, and what it looks at."""
    on = body["on"].value
    text = RuleText(on, body["when"], body["title"], body.get("detail"), body.get("dedupe"))
    choice = {name: body.get(name) for name in ("since", "until", "record_ids")}
    return text, Wanted(on, **choice, limit=body.get("limit", MOST_AT_ONCE))


@reads_objects
def tried_now(text: RuleText, wanted: Wanted) -> dict[str, Any]:
    """Return the result of a short test."""
    here = services()
    with transaction() as session:
        chosen = scanning.test(session, here.settings.master_keys, caller().tenant_id, wanted)
    return scanning.judge(here.evaluators, text, chosen).answer()


@blp.serves("POST /<rule_id>/backfill", ADMIN_TENANT, JobSchema, 202, takes=RuleBackfillSchema)
def backfill(body: dict[str, Any], rule_id: UUID | None) -> Response:
    """Let a rule judge the past

    By its version of now, on or off. What that version has matched already makes no finding again.
    Cancel the job to stop it. `max_per_hour` does not hold; `rate` does.
    """
    return once(
        202,
        lambda session: job_control.represent(
            scanning.start_backfill(session, caller(), rule_id, body)
        ),
    )
