"""Findings: listed, shown, added, followed; and rules, which make them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

import click

from record_service.client import NOW, Json
from record_service.commands.base import Group, Run, at, how_many, pass_run, since_until, yes_option
from record_service.commands.jobs import watch, watch_option
from record_service.output import plain

SEVERITIES = click.Choice(["info", "low", "medium", "high", "critical"])
SOURCES = click.Choice(["api", "otlp", "rule"])
_FINDINGS = {
    "ID": "id",
    "SEVERITY": "severity",
    "RULE": "rule",
    "TITLE": "title",
    "SESSION": "session_id",
    "CREATED": "created_at",
}
_COLOURS = {"critical": "red", "high": "red", "medium": "yellow"}


@click.group(cls=Group)
def findings() -> None:
    """Reports on what an agent did."""


@findings.command("list")
@click.option("--q", "q", metavar="WORDS", help='Words that must be there; "a phrase".')
@click.option("--severity", type=SEVERITIES)
@click.option("--source", type=SOURCES)
@click.option("--rule")
@click.option("--session", "session_id", metavar="ID")
@click.option("--record", "record_id", metavar="ID")
@click.option("--agent", "agent_id", metavar="ID")
@click.option("--principal")
@since_until
@how_many
@pass_run
def list_findings(run: Run, /, limit: int | None, **filters: Any) -> None:
    """List findings, newest first."""
    run.list("/v1/findings", _FINDINGS, limit, **filters)


@findings.command("show")
@click.argument("finding_id")
@pass_run
def show_finding(run: Run, finding_id: str) -> None:
    """Show a finding."""
    run.out.item(run.client.get(at("/v1/findings/{}", finding_id)))


@findings.command("add")
@click.option("--session", "session_id", metavar="ID")
@click.option("--record", "record_id", metavar="ID", help="The record it is about.")
@click.option("--rule", required=True)
@click.option("--severity", type=SEVERITIES, required=True)
@click.option("--title", required=True)
@click.option("--detail")
@click.option("--data", metavar="JSON", help="Any JSON but null.")
@pass_run
def add_finding(run: Run, /, data: str | None, **fields: str | None) -> None:
    """Add a finding to a session, or to a record."""
    if fields["session_id"] is None and fields["record_id"] is None:
        raise click.UsageError("Say what it is about: --session or --record.")
    try:
        read = None if data is None else json.loads(data)
    except ValueError:
        raise click.UsageError("--data is no JSON.") from None
    given = {name: each for name, each in {**fields, "data": read}.items() if each is not None}
    run.out.item(run.client.post("/v1/findings", given))


@findings.command("tail")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(0), default=10, show_default=True)
@pass_run
def tail(run: Run, follow: bool, lines: int) -> None:
    """Print the newest findings, the last one last."""
    # The place first: what comes while the list is read is then in the list or after the place.
    events = run.client.follow(NOW, "finding.created") if follow else iter(())
    for _ in islice(events, 1):
        pass
    last = list(islice(run.client.findings.list(page_size=max(1, min(lines, 200))), lines))[::-1]
    for finding in last:
        _print(run, finding)
    # An event may come twice, soon after the first time.
    seen = deque((finding["id"] for finding in last), maxlen=1000)
    for page, _ in events:
        for event in page:
            if event["data"]["id"] not in seen:
                seen.append(event["data"]["id"])
                _print(run, event["data"])


def _print(run: Run, finding: Mapping[str, Any]) -> None:
    severity = finding["severity"]
    if not run.out.terminal:
        run.out.line(finding, "\t".join(plain(finding[path]) for path in _FINDINGS.values()))
        return
    shown = run.out.style(severity.ljust(8), fg=_COLOURS.get(severity))
    at_time = finding["created_at"][:19].replace("T", " ")
    run.out.line(
        finding, f"{at_time}  {shown}  {plain(finding['rule'])}  {plain(finding['title'])}"
    )


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
def show_rule(run: Run, rule_id: str, versions: bool) -> None:
    """Show a rule, and how it fares."""
    if versions:
        run.list(at("/v1/rules/{}/versions", rule_id), _VERSIONS, None)
    else:
        run.out.item(run.client.get(at("/v1/rules/{}", rule_id)))


@rules.command("examples")
@pass_run
def rule_examples(run: Run) -> None:
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
def add_rule(run: Run, file: Any, example: str | None, enable: bool) -> None:
    """Create a rule; it is off unless it says otherwise."""
    body = _rule_body(run, file, example)
    run.out.item(run.client.post("/v1/rules", {**body, **({"enabled": True} if enable else {})}))


@rules.command("test", epilog=_FILE)
@click.argument("file", type=click.File(encoding="utf-8"), required=False)
@click.option("--example", metavar="NAME", help="A ready rule, instead of a file.")
@click.option("--record", "record_ids", multiple=True, metavar="ID", help="Try it on this record.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True)
@since_until
@pass_run
def test_rule(
    run: Run,
    file: Any,
    example: str | None,
    record_ids: tuple[str, ...],
    limit: int,
    since: str | None,
    until: str | None,
) -> None:
    """Try a rule on the newest records; nothing is stored. More than 100 are a job."""
    body = _rule_body(run, file, example)
    body.pop("enabled", None)
    if record_ids:
        body["record_ids"] = list(record_ids)
    else:
        times = {"since": since, "until": until}
        body.update({name: value for name, value in times.items() if value is not None})
        body["limit"] = limit
    result = run.client.post("/v1/rules/test", body)
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


@rules.command("update", epilog=_FILE)
@click.argument("rule_id")
@click.argument("file", type=click.File(encoding="utf-8"))
@pass_run
def update_rule(run: Run, rule_id: str, file: Any) -> None:
    """Change what FILE names; what is evaluated becomes a new version."""
    body = _rule_body(run, file, None)
    run.out.item(run.client.patch(at("/v1/rules/{}", rule_id), body))


@rules.command("delete")
@click.argument("rule_id")
@yes_option
@pass_run
def delete_rule(run: Run, rule_id: str, yes: bool) -> None:
    """Delete a rule; its versions and findings stay."""
    run.confirm(f"Delete {rule_id}?", yes)
    run.client.delete(at("/v1/rules/{}", rule_id))


@rules.command("enable")
@click.argument("rule_id")
@pass_run
def enable_rule(run: Run, rule_id: str) -> None:
    """Switch a rule on: it judges what is created from now on."""
    run.out.item(run.client.patch(at("/v1/rules/{}", rule_id), {"enabled": True}))


@rules.command("disable")
@click.argument("rule_id")
@pass_run
def disable_rule(run: Run, rule_id: str) -> None:
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
def backfill_rule(
    run: Run, rule_id: str, since: str, until: str, rate: int | None, dry_run: bool, watching: bool
) -> None:
    """Let a rule judge the past; cancel the job to stop it."""
    body: dict[str, Any] = {"since": since, "until": until, "dry_run": dry_run}
    if rate is not None:
        body["rate"] = rate
    job = run.client.post(at("/v1/rules/{}/backfill", rule_id), body)
    if watching:
        watch(run, job["id"])
    else:
        run.out.item(job)


def _rule_body(run: Run, file: Any, example: str | None) -> Json:
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
