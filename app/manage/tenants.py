"""The commands `python -m app.manage tenant …`."""

import argparse
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core import tenant_control, tenants
from app.core.callers import Role
from app.core.keys import groups
from app.core.records import bundles
from app.core.records.bundles import StorageUse
from app.core.tenant_control import Act
from app.database import database_now
from app.manage.service import require_yes, service, tell_untold

_MAX_NAME = 200
_MAX_REASON = 500
_Result = TypeVar("_Result")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `tenant`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = commands.add_parser("create", help="make a tenant; prints its root admin key, once")
    create.add_argument("name", metavar="NAME")
    create.set_defaults(run=_create)
    listing = commands.add_parser("list", help="list the tenants, and what each has stored")
    listing.set_defaults(run=_list)

    suspend = commands.add_parser(
        "suspend", help="refuse its keys and links, and hold its deliveries, until `resume`"
    )
    suspend.add_argument("--reason", type=_text(_MAX_REASON), help="for the tenant's audit chain")
    suspend.set_defaults(run=_suspend)
    resume = commands.add_parser("resume", help="let a suspended tenant go on")
    resume.set_defaults(run=_resume)
    revoke = commands.add_parser("revoke-keys", help="revoke all its keys, for good")
    revoke.add_argument("--yes", action="store_true", help="its programs are to lose their keys")
    revoke.set_defaults(run=_revoke_keys)
    mint = commands.add_parser("mint", help="mint a key without a pin; prints it, once")
    mint.add_argument("--name", type=_text(_MAX_NAME), default="operator")
    mint.add_argument("--role", type=Role, choices=list(Role), default=Role.ADMIN)
    mint.add_argument("--days", type=_days, help="after how many days it expires; default: never")
    mint.set_defaults(run=_mint)
    grouped = commands.add_parser(
        "groups", help="show, or set, which groups of the OpenID provider have a role in it"
    )
    grouped.set_defaults(run=_groups)
    for command in (suspend, resume, revoke, mint, grouped):
        command.add_argument("tenant", metavar="TENANT", type=_tenant, help="its id: ten_…")
    grouped.add_argument(
        "groups",
        metavar="GROUP=ROLE",
        nargs="*",
        type=_group,
        help="read, write, admin, none",
    )


def _create(arguments: argparse.Namespace) -> None:
    with service() as (settings, database):
        tenant_id, key = tenants.create(database, settings.master_keys, arguments.name)
    print(f"tenant: {ids.text('ten', tenant_id)}\nkey: {key}")


def _list(_: argparse.Namespace) -> None:
    lines = []
    with service() as (_settings, database), database.across_tenants() as session:
        stored = bundles.of_each(session)
        for tenant in tenants.rows(session):
            since = tenant.suspended_at
            state = f"  suspended since {since:%Y-%m-%d %H:%M} UTC" if since else ""
            has = stored.get(tenant.id, StorageUse(0, 0))
            counts = f"{has.records} records  {has.bytes / bundles.MIB:.1f} MiB"
            first = f"{ids.text('ten', tenant.id)}  {tenant.created_at:%Y-%m-%d}  {counts}"
            lines.append(f"{first}  {tenant.name}{state}")
    # Printed after the transaction: a pager may hold the output for an hour.
    for line in lines:
        print(line)


def _suspend(arguments: argparse.Namespace) -> None:
    _act(
        arguments.tenant,
        lambda session, tenant: tenant_control.suspend(session, tenant, arguments.reason),
        {True: "suspended", False: "it was suspended before: nothing was changed"}.__getitem__,
    )


def _resume(arguments: argparse.Namespace) -> None:
    _act(
        arguments.tenant,
        tenant_control.resume,
        {True: "resumed", False: "it was not suspended: nothing was changed"}.__getitem__,
    )


def _revoke_keys(arguments: argparse.Namespace) -> None:
    require_yes(arguments, "all its keys are to end")
    _act(arguments.tenant, tenant_control.revoke_keys, "revoked {} keys".format)


def _mint(arguments: argparse.Namespace) -> None:
    def minted(session: Session, tenant_id: UUID) -> Act[str]:
        days = arguments.days
        expires_at = days and database_now(session) + timedelta(days=days)
        return tenant_control.mint(session, tenant_id, arguments.name, arguments.role, expires_at)

    _act(arguments.tenant, minted, "key: {}".format)


def _groups(arguments: argparse.Namespace) -> None:
    tenant_id, untold = arguments.tenant, None
    with service() as (settings, database):
        with database.transaction(tenant_id) as session:
            if arguments.groups:
                untold = groups.change(session, tenant_id, dict(arguments.groups))
            found = groups.of_tenant(session, tenant_id)
        for name, role in found.items():
            print(f"{name}={role}")
        if untold is not None:
            tell_untold(settings, database, {tenant_id: untold})


def _act(
    tenant_id: UUID, act: Callable[[Session, UUID], Act[_Result]], say: Callable[[_Result], str]
) -> None:
    """Do an act and say what came of it once it is committed; warn of a broken chain."""
    with service() as (settings, database):
        with database.transaction(tenant_id) as session:
            done = act(session, tenant_id)
        print(say(done.result))
        if done.untold is not None:
            tell_untold(settings, database, {tenant_id: done.untold})


def _tenant(text: str) -> UUID:
    found = ids.parse("ten", text)
    if found is None:
        raise argparse.ArgumentTypeError("a tenant's id is ten_ and 32 hex digits: `tenant list`")
    return found


def _group(text: str) -> tuple[str, Role | None]:
    # A group's name may be a distinguished name of LDAP, with signs of its own.
    name, _, role = text.rpartition("=")
    if not (name and name.isprintable() and role in (*Role, "none")):
        raise argparse.ArgumentTypeError("write GROUP=read, =write, =admin, or GROUP=none")
    return name, None if role == "none" else Role(role)


def _text(longest: int) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not 1 <= len(text) <= longest or "\0" in text:
            raise argparse.ArgumentTypeError(f"write 1 to {longest} characters")
        return text

    return read


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 3650:
        raise argparse.ArgumentTypeError("write a whole number of days from 1 to 3650")
    return int(text)
