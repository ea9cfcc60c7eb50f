"""API keys: listed, minted, revoked."""

from __future__ import annotations

import click

from record_service.commands.base import Group, Run, at, how_many, pass_run, yes_option

_KEYS = {
    "ID": "id",
    "NAME": "name",
    "ROLE": "role",
    "PRINCIPAL": "pin.principal",
    "LAST USED": "last_used_at",
    "EXPIRES": "expires_at",
    "REVOKED": "revoked_at",
}


@click.group(cls=Group)
def keys() -> None:
    """API keys: roles and pins."""


@keys.command("list")
@how_many
@pass_run
def list_keys(run: Run, limit: int | None) -> None:
    """List keys, newest first."""
    run.list("/v1/keys", _KEYS, limit)


@keys.command("mint")
@click.argument("name")
@click.option("--role", type=click.Choice(["read", "write", "admin"]), required=True)
@click.option("--agent", metavar="ID", help="Pin it to this agent; with --principal.")
@click.option("--principal", help="Pin it to this principal; with --agent.")
@click.option("--expires-in", type=click.Choice(["1h", "1d", "7d", "30d", "90d", "365d"]))
@click.option("--expires-at", metavar="TIME")
@pass_run
def mint(
    run: Run,
    name: str,
    role: str,
    agent: str | None,
    principal: str | None,
    expires_in: str | None,
    expires_at: str | None,
) -> None:
    """Mint a key; its text is shown this once."""
    if (agent is None) != (principal is None):
        raise click.UsageError("A pin is both: --agent and --principal.")
    body: dict[str, object] = {"name": name, "role": role}
    if agent is not None:
        body["pin"] = {"agent_id": agent, "principal": principal}
    ends = {"expires_in": expires_in, "expires_at": expires_at}
    body.update({field: value for field, value in ends.items() if value is not None})
    run.out.item(run.client.post("/v1/keys", body))


@keys.command("revoke")
@click.argument("key_id")
@click.option("--descendants", is_flag=True, help="Also all that it minted, and so on.")
@yes_option
@pass_run
def revoke(run: Run, key_id: str, descendants: bool, yes: bool) -> None:
    """Revoke a key, at once and for good."""
    run.confirm(f"Revoke {key_id}{' and all that it minted' if descendants else ''}?", yes)
    query = {"descendants": "true"} if descendants else {}
    run.client.delete(at("/v1/keys/{}", key_id), **query)
