"""Rules: the list with the library, an editor with a check and a dry run, and a rule's page."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flask import Blueprint, redirect, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import caller, services, transaction
from app.api.resources.records.rules import (
    NewRuleSchema,
    RuleBackfillSchema,
    RuleChangeSchema,
    RuleTestSchema,
    changed,
    tried,
    tried_now,
)
from app.console.frame import forms, rendering, zone
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.core.callers import Role
from app.core.findings import Severity
from app.core.jobs import control as job_control
from app.core.rules import library, rules, scanning
from app.core.rules.language import FIELDS, VARIABLES
from app.core.rules.rule_schemas import COLUMNS, On, represent, represent_version
from app.errors import FieldError, Invalid, NotFound
from app.schemas import fields

blp = Blueprint("rules", __name__, url_prefix="/rules")

_HOURS = 48
_ADDS = ("rules add --example card-number", "POST /v1/rules")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
_TEXTS = {
    ("enabled", True): "The rule is on: it judges what is created from now on.",
    ("enabled", False): "The rule is off.",
}


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List the rules, and the library."""
    args = forms.query().load(PageArgs)
    with transaction() as session:
        found = page_of(
            args, lambda *where: rules.rows(session, caller().tenant_id, *where), represent
        )
    return rendering.page(
        "rules/list",
        found=found,
        examples=library.examples(),
        does=("rules list", "GET /v1/rules"),
    )


@blp.post("/examples/<name>")
@signed_in(Role.ADMIN, whole_tenant=True)
def use_example(name: str) -> Response:
    """Create a rule of the library, switched off."""
    chosen = next((each for each in library.examples() if each["name"] == name), None)
    if chosen is None:
        raise NotFound("There is no such example.")
    made = _create({field: chosen[field] for field in COLUMNS})
    place = url_for(".show", rule_id=made["id"])
    return rendering.done(place, "The rule is there, off. Try it, then switch it on.")


@blp.get("/new")
@signed_in(Role.ADMIN, whole_tenant=True)
def new() -> Response:
    """Show the editor of a new rule."""
    return _editor(forms.blank())


@blp.post("/new")
@signed_in(Role.ADMIN, whole_tenant=True)
def create() -> Response:
    """Create a rule."""
    typed = forms.sent()
    try:
        made = _create(typed.load(NewRuleSchema))
    except Invalid as wrong:
        return _editor(typed.refused(wrong), 422)
    return rendering.done(url_for(".show", rule_id=made["id"]), "The rule was created.")


@blp.post("/new/check")
@signed_in(Role.WRITE, whole_tenant=True)
def check_new() -> Response:
    """Show the editor with what does not compile, and nothing else done."""
    typed, good = _checked(forms.sent())
    return _editor(typed, checked=good)


@blp.post("/new/try")
@signed_in(Role.WRITE, whole_tenant=True)
def try_new() -> Response:
    """Show the editor with what the rule would find in the newest records."""
    typed, result = _tried(forms.sent())
    return _editor(typed, 422 if result is None else 200, result=result)


@blp.get("/<rule_id>")
@signed_in(Role.READ, whole_tenant=True)
def show(rule_id: str) -> Response:
    """Show one rule; of a deleted one, redirect to its last version."""
    try:
        return _page(rule_id, forms.blank())
    except NotFound:
        with transaction() as session:
            rule = ids.parse("rul", rule_id)
            last = rules.versions(session, caller().tenant_id, rule, None, 1)[0].version
        return redirect(url_for(".version", rule_id=rule_id, number=last), 303)


@blp.post("/<rule_id>")
@signed_in(Role.ADMIN, whole_tenant=True)
def change(rule_id: str) -> Response:
    """Change a rule, or switch it on or off."""
    typed = forms.sent()
    try:
        wanted = typed.load(RuleChangeSchema)
        changed(ids.parse("rul", rule_id), wanted, forms.once)
    except Invalid as wrong:
        return _page(rule_id, typed.refused(wrong), 422)
    texts = [text for (name, value), text in _TEXTS.items() if wanted.get(name) == value]
    place = url_for(".show", rule_id=rule_id)
    return rendering.done(place, " ".join(texts) or "The rule was changed.")


@blp.post("/<rule_id>/check")
@signed_in(Role.WRITE, whole_tenant=True)
def check(rule_id: str) -> Response:
    """Show the rule's page with what does not compile of the change, and nothing else done."""
    typed, good = _checked(forms.sent())
    return _page(rule_id, typed, checked=good)


@blp.post("/<rule_id>/try")
@signed_in(Role.WRITE, whole_tenant=True)
def try_it(rule_id: str) -> Response:
    """Show the rule's page with what the change would find in the newest records."""
    typed, result = _tried(forms.sent())
    return _page(rule_id, typed, 422 if result is None else 200, result=result)


@blp.post("/<rule_id>/backfill")
@signed_in(Role.ADMIN, whole_tenant=True)
def backfill(rule_id: str) -> Response:
    """Start a backfill."""
    typed = forms.sent()
    rule = ids.parse("rul", rule_id)
    try:
        wanted = typed.load(RuleBackfillSchema)
        job = forms.once(
            lambda session: job_control.represent(
                scanning.start_backfill(session, caller(), rule, wanted)
            )
        )
    except Invalid as wrong:
        return _page(rule_id, typed.refused(wrong), 422)
    return rendering.done(url_for("console.jobs.show", job_id=job["id"]), "The backfill has begun.")


@blp.post("/<rule_id>/delete")
@signed_in(Role.ADMIN, whole_tenant=True)
def delete(rule_id: str) -> Response:
    """Delete a rule, if its name was typed as confirmation."""
    typed = forms.sent()

    def end(session: Session) -> None:
        found = rules.find(session, caller().tenant_id, ids.parse("rul", rule_id))
        if typed.value("confirmed").strip() != found.rule.name:
            raise Invalid(FieldError("/confirmed", "This is not its name."))
        rules.delete(session, caller(), found.id)

    try:
        forms.once(end)
    except Invalid as wrong:
        return _page(rule_id, typed.refused(wrong), 422)
    return rendering.done(url_for(".index"), "The rule was deleted. Its versions stay readable.")


@blp.get("/<rule_id>/versions/<number>")
@signed_in(Role.READ, whole_tenant=True)
def version(rule_id: str, number: str) -> Response:
    """Show a rule as it was."""
    rule = ids.parse("rul", rule_id) if _NUMBER.fullmatch(number) else None
    with transaction() as session:
        found = rules.version(session, caller().tenant_id, rule, int(number) if rule else 0)
        told = represent_version(found)
    return rendering.page(
        "rules/version",
        rule_id=rule_id,
        was=told,
        does=(f"rules show {rule_id} --versions", f"GET /v1/rules/{rule_id}/versions"),
    )


def _create(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Create a rule once, after its expressions were checked."""
    rules.check(services().evaluators, wanted)
    with transaction() as session:
        rules.prepare(session, caller().tenant_id)
    return forms.once(lambda session: represent(rules.create(session, caller(), wanted)))


class _TypedRuleSchema(RuleChangeSchema):
    """A rule that is being typed: what is not there yet is not checked."""

    on = fields.Choice(On, required=True)


def _checked(typed: Input) -> tuple[Input, bool]:
    """Return the form with what does not compile, and whether all that is there does."""
    try:
        rules.check(services().evaluators, typed.load(_TypedRuleSchema))
    except Invalid as wrong:
        return typed.refused(wrong), False
    return typed, bool(typed.value("when"))


def _tried(typed: Input) -> tuple[Input, dict[str, Any] | None]:
    """Return the form, and what the rule would find; None where it does not compile."""
    try:
        wanted = typed.load(RuleTestSchema)
        rules.check(services().evaluators, wanted)
        return typed, tried_now(*tried(wanted))
    except Invalid as wrong:
        return typed.refused(wrong), None


def _editor(
    typed: Input,
    status: int = 200,
    *,
    checked: bool = False,
    result: Mapping[str, Any] | None = None,
) -> Response:
    return rendering.page(
        "rules/new", status, typed=typed, checked=checked, result=result, **_shown(), does=_ADDS
    )


def _page(
    rule_id: str,
    typed: Input,
    status: int = 200,
    *,
    checked: bool = False,
    result: Mapping[str, Any] | None = None,
) -> Response:
    rule = ids.parse("rul", rule_id)
    with transaction() as session:
        found = rules.find(session, caller().tenant_id, rule)
        hours = rules.hours(session, caller().tenant_id, found.id, _HOURS)
        versions = rules.versions(session, caller().tenant_id, rule, None, 50)
        told = [represent_version(each) for each in versions]
    return rendering.page(
        "rules/one",
        status,
        rule=represent(found),
        hours=[
            {**asdict(row), "at": row.hour, "label": zone.label(row.hour, "hour"), "links": {}}
            for row in hours
        ],
        versions=told,
        typed=typed,
        checked=checked,
        result=result,
        **_shown(),
        does=(f"rules show {rule_id}", f"GET /v1/rules/{rule_id}"),
    )


def _shown() -> dict[str, Any]:
    """Return what the editor names: choices, and what a rule sees."""
    return {
        "ons": [(each.value, f"each {each.value}") for each in On],
        "severities": [(each.value, each.value) for each in Severity],
        "fields": FIELDS,
        "variables": VARIABLES,
    }
