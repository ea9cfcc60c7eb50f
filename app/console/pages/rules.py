"""Rules: the list with the library, an editor with a check and a dry run, and a rule's page."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

from flask import redirect, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, services, transaction
from app.api.resources.records.rules import (
    NewRuleSchema,
    RuleBackfillSchema,
    RuleChangeSchema,
    RuleTestSchema,
    compiled,
    list_rules,
    tried,
    tried_now,
)
from app.console.frame import forms, lists, rendering, zone
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.core.callers import Role
from app.core.findings import Severity
from app.core.jobs import control as job_control
from app.core.rules import library, rules, scanning
from app.core.rules.language import FIELDS, VARIABLES
from app.core.rules.rule_schemas import COLUMNS, On, represent, represent_version
from app.errors import FieldError, Invalid, NotFound
from app.schemas import fields

blp = Pages("rules", "/rules")

_HOURS = 48
_ADDS = ("rules add --example card-number", "POST /v1/rules")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
_TEXTS = {
    ("enabled", True): "The rule is on: it judges what is created from now on.",
    ("enabled", False): "The rule is off.",
}


class _TypedRuleSchema(RuleChangeSchema):
    """A rule that is being typed: what is not there yet is not checked."""

    on = fields.Choice(On, required=True)


def _create(wanted: Mapping[str, Any]) -> Any:
    """Create a rule once, after its expressions were checked."""
    rules.check(services().evaluators, wanted)
    with transaction() as session:
        rules.prepare(session, caller().tenant_id)
    return forms.do(rules.create, wanted, show=represent)


def _page(
    typed: Input,
    status: int = 200,
    *,
    rule_id: UUID | None = None,
    checked: bool = False,
    result: Mapping[str, Any] | None = None,
) -> Response:
    """Show the editor: of a rule on its page, or (None: `new`) of one that is not there yet."""
    shown: dict[str, Any] = {
        "typed": typed,
        "checked": checked,
        "result": result,
        "ons": [(each.value, f"each {each.value}") for each in On],
        "severities": forms.choices(Severity),
        "fields": FIELDS,
        "variables": VARIABLES,
    }
    if rule_id is None:
        return rendering.page("rules/new", status, does=_ADDS, **shown)
    with transaction() as session:
        found = rules.find(session, caller().tenant_id, rule_id)
        hours = rules.hours(session, caller().tenant_id, found.id, _HOURS)
        versions = rules.versions(session, caller().tenant_id, rule_id, None, 50)
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
        does=("rules show {rule_id}", "GET /v1/rules/{rule_id}"),
        **shown,
    )


lists.serve(
    blp,
    "rules",
    list_rules,
    named=lambda _: (),
    shown={"examples": library.examples()},
)


@blp.form("/examples/<name>", Role.ADMIN)
def use_example(name: str) -> Response:
    """Create a rule of the library, switched off."""
    chosen = next((each for each in library.examples() if each["name"] == name), None)
    if chosen is None:
        raise NotFound("There is no such example.")
    made = _create({field: chosen[field] for field in COLUMNS})
    return rendering.done(
        ".show", "The rule is there, off. Try it, then switch it on.", rule_id=made["id"]
    )


@blp.page("/new", Role.ADMIN)
def new() -> Response:
    """Show the editor of a new rule."""
    return _page(forms.blank())


@blp.form("/new", Role.ADMIN, again=_page)
def create(typed: Input) -> Response:
    """Create a rule."""
    made = _create(typed.load(NewRuleSchema))
    return rendering.done(".show", "The rule was created.", rule_id=made["id"])


@blp.page("/<rule_id>")
def show(rule_id: UUID | None) -> Response:
    """Show one rule; of a deleted one, redirect to its last version."""
    if rule_id is None:
        raise NotFound("There is no such rule.")
    try:
        return _page(forms.blank(), rule_id=rule_id)
    except NotFound:
        with transaction() as session:
            last = rules.versions(session, caller().tenant_id, rule_id, None, 1)[0].version
        return redirect(url_for(".version", rule_id=rule_id, number=last), 303)


@blp.form("/<rule_id>", Role.ADMIN, again=_page)
def change(typed: Input, rule_id: UUID | None) -> Response:
    """Change a rule, or switch it on or off."""
    wanted = typed.load(RuleChangeSchema)
    forms.do(rules.change, rule_id, wanted, compiled(rule_id, wanted))
    texts = [text for (name, value), text in _TEXTS.items() if wanted.get(name) == value]
    return rendering.done(".show", " ".join(texts) or "The rule was changed.")


@blp.form("/<rule_id>/check", Role.WRITE)
def check(rule_id: UUID | None) -> Response:
    """Show the editor with what does not compile, and nothing else done."""
    typed = forms.sent()
    with typed.refusing():
        rules.check(services().evaluators, typed.load(_TypedRuleSchema))
    checked = bool(typed.value("when")) and not typed.errors
    return _page(typed, rule_id=rule_id, checked=checked)


@blp.form("/<rule_id>/try", Role.WRITE, again=_page)
def try_it(typed: Input, rule_id: UUID | None) -> Response:
    """Show the editor with what the rule would find in the newest records."""
    wanted = typed.load(RuleTestSchema)
    rules.check(services().evaluators, wanted)
    return _page(typed, rule_id=rule_id, result=tried_now(*tried(wanted)))


@blp.form("/<rule_id>/backfill", Role.ADMIN, again=_page)
def backfill(typed: Input, rule_id: UUID | None) -> Response:
    """Start a backfill."""
    given = (rule_id, typed.load(RuleBackfillSchema))
    job = forms.do(scanning.start_backfill, *given, show=job_control.represent)
    return rendering.done("console.jobs.show", "The backfill has begun.", job_id=job["id"])


@blp.form("/<rule_id>/delete", Role.ADMIN, again=_page)
def delete(typed: Input, rule_id: UUID | None) -> Response:
    """Delete a rule, if its name was typed as confirmation."""

    def end(session: Session) -> None:
        found = rules.find(session, caller().tenant_id, rule_id)
        if typed.value("confirmed").strip() != found.rule.name:
            raise Invalid(FieldError("/confirmed", "This is not its name."))
        rules.delete(session, caller(), found.id)

    forms.once(end)
    return rendering.done(".index", "The rule was deleted. Its versions stay readable.")


@blp.page("/<rule_id>/versions/<number>")
def version(rule_id: UUID | None, number: str) -> Response:
    """Show a rule as it was."""
    rule = rule_id if _NUMBER.fullmatch(number) else None
    with transaction() as session:
        found = rules.version(session, caller().tenant_id, rule, int(number) if rule else 0)
        told = represent_version(found)
    return rendering.page(
        "rules/version",
        rule_id=ids.text("rul", found.rule_id),
        was=told,
        does=("rules show {rule_id} --versions", "GET /v1/rules/{rule_id}/versions"),
    )
