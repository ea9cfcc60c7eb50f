"""Agents and their sessions."""

from __future__ import annotations

import click

from record_service.commands.base import Group, Run, at, how_many, pass_run, since_until

_AGENTS = {"ID": "id", "NAME": "name", "DESCRIPTION": "description", "CREATED": "created_at"}
_SESSIONS = {
    "ID": "id",
    "STATUS": "status",
    "OUTCOME": "outcome",
    "PRINCIPAL": "principal",
    "TITLE": "title",
    "CREATED": "created_at",
}


@click.group(cls=Group)
def agents() -> None:
    """The AI agents that act for people."""


@agents.command("list")
@how_many
@pass_run
def list_agents(run: Run, limit: int | None) -> None:
    """List agents, newest first."""
    run.list("/v1/agents", _AGENTS, limit)


@agents.command("show")
@click.argument("agent_id")
@pass_run
def show_agent(run: Run, agent_id: str) -> None:
    """Show an agent."""
    run.out.item(run.client.get(at("/v1/agents/{}", agent_id)))


@agents.command("add")
@click.argument("name")
@click.option("--description")
@pass_run
def add_agent(run: Run, name: str, description: str | None) -> None:
    """Make an agent."""
    run.out.item(run.client.create("/v1/agents", {"name": name, "description": description}))


@click.group(cls=Group)
def sessions() -> None:
    """Runs of an agent on behalf of a principal."""


@sessions.command("list")
@click.option("--agent", "agent_id", metavar="ID")
@click.option("--principal")
@click.option("--status", type=click.Choice(["open", "completed"]))
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
@pass_run
def open_session(run: Run, agent: str, principal: str, title: str | None) -> None:
    """Open a session."""
    run.out.item(run.client.open_session(agent, principal, title=title))


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
    run.out.item(run.client.complete_session(session_id, outcome, summary))
