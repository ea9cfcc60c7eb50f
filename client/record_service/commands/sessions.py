"""Agents and their sessions; traces that became their records."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import click

from record_service.commands.base import Group, Run, at, how_many, pass_run, since_until
from record_service.commands.exports import copy, proof_options, save_proof, saving, wait_option

_AGENTS = {
    "ID": "id",
    "NAME": "name",
    "EXTERNAL ID": "external_id",
    "VERSION": "version",
    "CREATED": "created_at",
}
_SESSIONS = {
    "ID": "id",
    "STATUS": "status",
    "OUTCOME": "outcome",
    "PRINCIPAL": "principal",
    "TITLE": "title",
    "EXTERNAL ID": "external_id",
    "CREATED": "created_at",
}
_TRACES = {
    "TRACE": "trace_id",
    "STATUS": "status",
    "SPANS": "spans",
    "SERVICE": "service",
    "EXPORTER": "exporter",
    "REASON": "reason",
    "LAST SPAN": "at",
}


@click.group(cls=Group)
def agents() -> None:
    """The AI agents that act for people."""


@agents.command("list")
@click.option("--name")
@click.option("--external-id", metavar="ID", help="Your own id of it.")
@how_many
@pass_run
def list_agents(run: Run, /, limit: int | None, **filters: str | None) -> None:
    """List agents, newest first."""
    run.list("/v1/agents", _AGENTS, limit, **filters)


@agents.command("show")
@click.argument("agent_id")
@pass_run
def show_agent(run: Run, agent_id: str) -> None:
    """Show an agent."""
    run.out.item(run.client.get(at("/v1/agents/{}", agent_id)))


@agents.command("add")
@click.argument("name")
@click.option("--external-id", metavar="ID", help="Your own id of it, unique in the tenant.")
@click.option("--version")
@click.option("--description")
@pass_run
def add_agent(run: Run, /, **fields: str | None) -> None:
    """Make an agent."""
    given = {name: text for name, text in fields.items() if text is not None}
    run.out.item(run.client.post("/v1/agents", given))


@click.group(cls=Group)
def sessions() -> None:
    """Runs of an agent on behalf of a principal."""


@sessions.command("list")
@click.option("--agent", "agent_id", metavar="ID")
@click.option("--principal")
@click.option("--status", type=click.Choice(["open", "completed"]))
@click.option("--external-id", metavar="ID", help="Your own id of it.")
@since_until
@how_many
@pass_run
def list_sessions(run: Run, /, limit: int | None, **filters: str | None) -> None:
    """List sessions, newest first."""
    run.list("/v1/sessions", _SESSIONS, limit, **filters)


@sessions.command("show")
@click.argument("session_id")
@pass_run
def show_session(run: Run, session_id: str) -> None:
    """Show a session."""
    run.out.item(run.client.get(at("/v1/sessions/{}", session_id)))


@sessions.command("open")
@click.option("--agent", required=True, metavar="ID", help="Whose session it is.")
@click.option("--principal", required=True, help="For whom the agent acts.")
@click.option("--title")
@click.option("--external-id", metavar="ID", help="Your own id of it, unique in the tenant.")
@pass_run
def open_session(run: Run, /, agent: str, principal: str, **fields: str | None) -> None:
    """Open a session."""
    given = {name: text for name, text in fields.items() if text is not None}
    run.out.item(
        run.client.post("/v1/sessions", {"agent_id": agent, "principal": principal, **given})
    )


@sessions.command("complete")
@click.argument("session_id")
@click.option(
    "--outcome",
    type=click.Choice(["succeeded", "failed", "cancelled"]),
    default="succeeded",
    show_default=True,
)
@click.option("--summary")
@pass_run
def complete_session(run: Run, session_id: str, outcome: str, summary: str | None) -> None:
    """Complete a session: it takes no more records."""
    body = {"outcome": outcome, **({} if summary is None else {"summary": summary})}
    run.out.item(run.client.post(at("/v1/sessions/{}/complete", session_id), body))


@sessions.command("statement")
@click.argument("session_id")
@click.option("-o", "--output", "to", metavar="FILE", default="-", help="Where to; else stdout.")
@pass_run
def read_statement(run: Run, /, session_id: str, to: str) -> None:
    """Read the signed statement of a completed session: how many records it held, and their root.

    With -o FILE the signature is saved beside it, as FILE.sig.
    """
    with run.client.download(at("/v1/sessions/{}/statement", session_id)) as answer:
        with saving(to) as file:
            copy(answer, file)
        signature = answer.headers["x-service-bundle-signature"].partition('sig="')[2].strip('"')
    if to != "-":
        with saving(f"{to}.sig") as file:
            file.write(b64decode(signature))


@sessions.command("evidence")
@click.argument("session_id")
@proof_options
@wait_option
@pass_run
def session_evidence(run: Run, /, session_id: str, **how: Any) -> None:
    """Save all that proves a completed session and its records, in one ZIP.

    --verify names each record that is missing, was added or was changed. It holds the session
    against --key and --policy, or else against what the service publishes now.
    """
    save_proof(run, at("/v1/sessions/{}/evidence.zip", session_id), **how)


@click.group(cls=Group)
def traces() -> None:
    """What OpenTelemetry's exporters sent, and what became of it."""


@traces.command("list")
@click.option(
    "--status",
    type=click.Choice(["staged", "assembled", "incomplete", "dropped", "rejected"]),
)
@how_many
@pass_run
def list_traces(run: Run, limit: int | None, status: str | None) -> None:
    """List traces, the one that came last first."""
    run.list("/v1/traces", _TRACES, limit, status=status)
