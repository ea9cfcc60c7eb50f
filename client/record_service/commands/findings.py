"""Findings: listed, shown, added, followed."""

from __future__ import annotations

import json
from collections import deque
from itertools import islice
from typing import Any

import click

from record_service.client import NOW, Json
from record_service.commands.base import Group, Run, at, how_many, pass_run, since_until
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
    run.out.item(run.client.add_finding(data=read, **fields))


@findings.command("tail")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(0), default=10, show_default=True)
@pass_run
def tail(run: Run, follow: bool, lines: int) -> None:
    """Print the newest findings, the last one last."""
    # The place first: what comes while the list is read is then in the list or after the place.
    events = run.client.events(NOW, "finding.created") if follow else iter(())
    for _ in islice(events, 1):
        pass
    last = list(islice(run.client.findings(limit=max(1, min(lines, 200))), lines))[::-1]
    for finding in last:
        _print(run, finding)
    # An event may come twice, soon after the first time.
    seen = deque((finding["id"] for finding in last), maxlen=1000)
    for page, _ in events:
        for event in page:
            if event["data"]["id"] not in seen:
                seen.append(event["data"]["id"])
                _print(run, event["data"])


def _print(run: Run, finding: Json) -> None:
    severity = finding["severity"]
    if not run.out.terminal:
        run.out.line(finding, "\t".join(plain(finding[path]) for path in _FINDINGS.values()))
        return
    shown = run.out.style(severity.ljust(8), fg=_COLOURS.get(severity))
    at_time = finding["created_at"][:19].replace("T", " ")
    run.out.line(
        finding, f"{at_time}  {shown}  {plain(finding['rule'])}  {plain(finding['title'])}"
    )
