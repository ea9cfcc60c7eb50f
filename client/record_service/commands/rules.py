"""Rules: listed, shown, added from a file, tried, switched, let loose on the past."""

from __future__ import annotations

import json
from typing import Any

import click

from record_service.client import Json
from record_service.commands.base import Group, Run, at, how_many, pass_run, since_until
from record_service.commands.jobs import watch, watch_option
from record_service.output import plain

_RULES = {
    "ID": "id",
    "NAME": "name",
    "STATE": "state",
    "ON": "on",
    "SEVERITY": "severity",
    "VERSION": "version",
    "HOUR": "matches.hour",
    "DAY": "matches.day",
    "LAST ERROR": "last_error.at",
}
_VERSIONS = {"VERSION": "version", "MADE": "created_at", "BY": "created_by", "WHEN": "when"}
_FILE = (
    "FILE has a rule as `rules examples --json` and POST /v1/rules have it; - is standard input."
)


@click.group(cls=Group)
def rules() -> None:
    """Conditions over records that make findings."""


@rules.command("list")
@how_many
@pass_run
def list_rules(run: Run, limit: int | None) -> None:
    """List rules, newest first."""
    run.list("/v1/rules", _RULES, limit)


@rules.command("show")
@click.argument("rule_id")
@click.option("--versions", is_flag=True, help="Each as it was, also of a rule that was deleted.")
@pass_run
def show(run: Run, rule_id: str, versions: bool) -> None:
    """Show a rule, and how it fares."""
    if versions:
        run.list(at("/v1/rules/{}/versions", rule_id), _VERSIONS, None)
    else:
        run.out.item(run.client.get(at("/v1/rules/{}", rule_id)))


@rules.command("examples")
@pass_run
def examples(run: Run) -> None:
    """List the ready rules."""
    found = run.client.get("/v1/rules/examples")["data"]
    if run.out.json:
        run.out.array(iter(found), lambda: None)
    else:
        run.out.rows(iter(found), {"NAME": "name", "ON": "on", "ABOUT": "about"})


@rules.command("add", epilog=_FILE)
@click.argument("file", type=click.File(encoding="utf-8"), required=False)
@click.option("--example", metavar="NAME", help="A ready rule, instead of a file.")
@click.option("--enable", is_flag=True, help="Switch it on at once.")
@pass_run
def add(run: Run, file: Any, example: str | None, enable: bool) -> None:
    """Create a rule; it is off unless it says otherwise."""
    body = _body(run, file, example)
    run.out.item(run.client.create("/v1/rules", {**body, **({"enabled": True} if enable else {})}))


@rules.command("test", epilog=_FILE)
@click.argument("file", type=click.File(encoding="utf-8"), required=False)
@click.option("--example", metavar="NAME", help="A ready rule, instead of a file.")
@click.option("--record", "record_ids", multiple=True, metavar="ID", help="Try it on this record.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True)
@since_until
@pass_run
def test(
    run: Run,
    file: Any,
    example: str | None,
    record_ids: tuple[str, ...],
    limit: int,
    since: str | None,
    until: str | None,
) -> None:
    """Try a rule on the newest records; nothing is stored. More than 100 are a job."""
    body = _body(run, file, example)
    body.pop("enabled", None)
    if record_ids:
        body["record_ids"] = list(record_ids)
    else:
        times = {"since": since, "until": until}
        body.update({name: value for name, value in times.items() if value is not None})
        body["limit"] = limit
    result = run.client.create("/v1/rules/test", body)
    if "evaluated" not in result:
        watch(run, result["id"])
        result = run.client.get(at("/v1/jobs/{}", result["id"]))["progress"]
    if run.out.json:
        run.out.item(result)
        return
    told = ("evaluated", "matched", "errors", "ms")
    run.out.note("  ".join(f"{name} {plain(result[name])}" for name in told))
    if result["error"] is not None:
        run.out.note(f"error: {plain(result['error']['detail'])}")
    run.out.rows(
        iter(result["matches"]),
        {"RECORD": "record_id", "SESSION": "session_id", "STEP": "step", "TITLE": "title"},
    )


@rules.command("enable")
@click.argument("rule_id")
@pass_run
def enable(run: Run, rule_id: str) -> None:
    """Switch a rule on: it judges what is created from now on."""
    run.out.item(run.client.patch(at("/v1/rules/{}", rule_id), {"enabled": True}))


@rules.command("disable")
@click.argument("rule_id")
@pass_run
def disable(run: Run, rule_id: str) -> None:
    """Switch a rule off."""
    run.out.item(run.client.patch(at("/v1/rules/{}", rule_id), {"enabled": False}))


@rules.command("backfill")
@click.argument("rule_id")
@click.option("--since", metavar="TIME", required=True)
@click.option("--until", metavar="TIME", required=True, help="Not in the future.")
@click.option("--rate", type=click.IntRange(1), help="Records a second, at most.")
@click.option("--dry-run", is_flag=True, help="Count, and make no finding.")
@watch_option
@pass_run
def backfill(
    run: Run, rule_id: str, since: str, until: str, rate: int | None, dry_run: bool, watching: bool
) -> None:
    """Let a rule judge the past; cancel the job to stop it."""
    body: dict[str, Any] = {"since": since, "until": until, "dry_run": dry_run}
    if rate is not None:
        body["rate"] = rate
    job = run.client.create(at("/v1/rules/{}/backfill", rule_id), body)
    if watching:
        watch(run, job["id"])
    else:
        run.out.item(job)


def _body(run: Run, file: Any, example: str | None) -> Json:
    """Return the rule that a file or an example's name gives."""
    if (file is None) == (example is None):
        raise click.UsageError("Give a FILE, or --example NAME.")
    if example is not None:
        found = run.client.get("/v1/rules/examples")["data"]
        chosen = next((each for each in found if each["name"] == example), None)
        if chosen is None:
            names = ", ".join(each["name"] for each in found)
            raise click.UsageError(f"There is no example {example}; there are {names}.")
    else:
        try:
            chosen = json.load(file)
        except ValueError:
            raise click.UsageError("The file is no JSON.") from None
        if not isinstance(chosen, dict):
            raise click.UsageError("The file is no JSON object.")
    return {name: value for name, value in chosen.items() if name not in ("about", "cases")}
