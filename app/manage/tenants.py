"""The commands `python -m app.manage tenant …`."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import click
from sqlalchemy.orm import Session

from app import ids
from app.core import tenants
from app.core.callers import Role
from app.core.keys import groups as provider_groups
from app.core.records import bundles
from app.core.records.bundles import StorageUse
from app.core.tenants import Act
from app.database import database_now
from app.manage.service import line, require_yes, service, tell_untold

_Result = TypeVar("_Result")


def _id(text: str) -> UUID:
    found = ids.parse("ten", text)
    if found is None:
        raise click.BadParameter("a tenant's id is ten_ and 32 hex digits: `tenant list`")
    return found


_tenant = click.argument("tenant_id", metavar="TENANT", type=_id)


@click.group()
def tenant() -> None:
    """Manage tenants."""


@tenant.command()
@click.argument("name")
def create(name: str) -> None:
    """Make a tenant; prints its root admin key, once."""
    with service() as (settings, database):
        tenant_id, key = tenants.create(database, settings.master_keys, name)
    print(f"tenant: {ids.text('ten', tenant_id)}\nkey: {key}")


@tenant.command("list")
def list_tenants() -> None:
    """List the tenants, and what each has stored."""
    lines = []
    with service() as (_settings, database), database.across_tenants() as session:
        stored = bundles.of_each(session)
        for each in tenants.rows(session):
            since = each.suspended_at
            state = f"  suspended since {since:%Y-%m-%d %H:%M} UTC" if since else ""
            has = stored.get(each.id, StorageUse(0, 0))
            counts = f"{has.records} records  {has.bytes / bundles.MIB:.1f} MiB"
            first = f"{ids.text('ten', each.id)}  {each.created_at:%Y-%m-%d}  {counts}"
            lines.append(f"{first}  {each.name}{state}")
    # Printed after the transaction: a pager may hold the output for an hour.
    for text in lines:
        print(text)


@tenant.command()
@_tenant
@click.option("--reason", type=line(500), help="For the tenant's audit chain.")
def suspend(tenant_id: UUID, reason: str | None) -> None:
    """Refuse its keys and links, and hold its deliveries, until `resume`."""
    _act(
        tenant_id,
        lambda session: tenants.suspend(session, tenant_id, reason),
        {True: "suspended", False: "it was suspended before: nothing was changed"}.__getitem__,
    )


@tenant.command()
@_tenant
def resume(tenant_id: UUID) -> None:
    """Let a suspended tenant go on."""
    _act(
        tenant_id,
        lambda session: tenants.resume(session, tenant_id),
        {True: "resumed", False: "it was not suspended: nothing was changed"}.__getitem__,
    )


@tenant.command()
@_tenant
@click.option("--yes", is_flag=True, help="Its programs are to lose their keys.")
def revoke_keys(tenant_id: UUID, yes: bool) -> None:
    """Revoke all its keys, for good."""
    require_yes(yes, "all its keys are to end")
    _act(
        tenant_id,
        lambda session: tenants.revoke_keys(session, tenant_id),
        "revoked {} keys".format,
    )


@tenant.command()
@_tenant
@click.option("--name", type=line(), default="operator", show_default=True)
@click.option("--role", type=click.Choice([*map(str, Role)]), default="admin", show_default=True)
@click.option(
    "--days", type=click.IntRange(1, 3650), help="After how many days it expires; default: never."
)
def mint(tenant_id: UUID, name: str, role: str, days: int | None) -> None:
    """Mint a key without a pin; prints it, once."""

    def minted(session: Session) -> Act[str]:
        expires_at = days and database_now(session) + timedelta(days=days)
        return tenants.mint(session, tenant_id, name, Role(role), expires_at or None)

    _act(tenant_id, minted, "key: {}".format)


def _group(text: str) -> tuple[str, Role | None]:
    # A group's name may be a distinguished name of LDAP, with signs of its own.
    name, _, role = text.rpartition("=")
    if not (name and name.isprintable() and role in (*Role, "none")):
        raise click.BadParameter("write GROUP=read, =write, =admin, or GROUP=none")
    return name, None if role == "none" else Role(role)


@tenant.command()
@_tenant
@click.argument("wanted", metavar="[GROUP=ROLE]...", nargs=-1, type=_group)
def groups(tenant_id: UUID, wanted: tuple[tuple[str, Role | None], ...]) -> None:
    """Show, or set, which groups of the OpenID provider have a role in it.

    A role is read, write, admin or none.
    """
    untold = None
    with service() as (settings, database):
        with database.transaction(tenant_id) as session:
            if wanted:
                untold = provider_groups.change(session, tenant_id, dict(wanted))
            found = provider_groups.of_tenant(session, tenant_id)
        for name, role in found.items():
            print(f"{name}={role}")
        if untold is not None:
            tell_untold(settings, database, {tenant_id: untold})


def _act(
    tenant_id: UUID, act: Callable[[Session], Act[_Result]], say: Callable[[_Result], str]
) -> None:
    """Do an act and say what came of it once it is committed; warn of a broken chain."""
    with service() as (settings, database):
        with database.transaction(tenant_id) as session:
            done = act(session)
        print(say(done.result))
        if done.untold is not None:
            tell_untold(settings, database, {tenant_id: done.untold})
