"""The commands `python -m app.manage tenant …`."""

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids, logs
from app.core import tenant_control, tenants
from app.core.callers import Role
from app.core.records import storage
from app.core.records.storage import StorageUse
from app.core.tenant_control import Act
from app.core.verification import alerts
from app.database import Database, database_now
from app.errors import AuditChainBroken, Conflict
from app.settings import Settings

Service = Callable[[], AbstractContextManager[tuple[Settings, Database]]]
_MAX_NAME = 200
_MAX_REASON = 500
_Result = TypeVar("_Result")


def add(parser: argparse.ArgumentParser, service: Service) -> None:
    """Add the commands to the parser of `tenant`; `service` opens settings and database."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = _Commands(service)

    create = commands.add_parser("create", help="make a tenant; prints its root admin key, once")
    create.add_argument("name", metavar="NAME")
    create.set_defaults(run=run.create)
    listing = commands.add_parser("list", help="list the tenants, and what each has stored")
    listing.set_defaults(run=run.list)

    suspend = commands.add_parser(
        "suspend", help="refuse its keys and links, and hold its deliveries, until `resume`"
    )
    suspend.add_argument("--reason", type=_text(_MAX_REASON), help="for the tenant's audit chain")
    suspend.set_defaults(run=run.suspend)
    resume = commands.add_parser("resume", help="let a suspended tenant go on")
    resume.set_defaults(run=run.resume)
    revoke = commands.add_parser("revoke-keys", help="revoke all its keys, for good")
    revoke.add_argument("--yes", action="store_true", help="its programs are to lose their keys")
    revoke.set_defaults(run=run.revoke_keys)
    mint = commands.add_parser("mint", help="mint a key without a pin; prints it, once")
    mint.add_argument("--name", type=_text(_MAX_NAME), default="operator")
    mint.add_argument("--role", type=Role, choices=list(Role), default=Role.ADMIN)
    mint.add_argument("--days", type=_days, help="after how many days it expires; default: never")
    mint.set_defaults(run=run.mint)
    for command in (suspend, resume, revoke, mint):
        command.add_argument("tenant", metavar="TENANT", type=_tenant, help="its id: ten_…")


class _Commands:
    def __init__(self, service: Service) -> None:
        self._service = service

    def create(self, arguments: argparse.Namespace) -> None:
        with self._service() as (settings, database):
            tenant_id, key = tenants.create(database, settings.master_keys, arguments.name)
        print(f"tenant: {ids.text('ten', tenant_id)}\nkey: {key}")

    def list(self, _: argparse.Namespace) -> None:
        with self._service() as (_settings, database), database.across_tenants() as session:
            stored = storage.of_each(session)
            for tenant in tenants.rows(session):
                since = tenant.suspended_at
                state = f"  suspended since {since:%Y-%m-%d %H:%M} UTC" if since else ""
                has = stored.get(tenant.id, StorageUse(0, 0))
                counts = f"{has.records} records  {has.bytes / storage.MIB:.1f} MiB"
                first = f"{ids.text('ten', tenant.id)}  {tenant.created_at:%Y-%m-%d}  {counts}"
                print(f"{first}  {tenant.name}{state}")

    def suspend(self, arguments: argparse.Namespace) -> None:
        self._act(
            arguments.tenant,
            lambda session, tenant: tenant_control.suspend(session, tenant, arguments.reason),
            {True: "suspended", False: "it was suspended before: nothing was changed"}.__getitem__,
        )

    def resume(self, arguments: argparse.Namespace) -> None:
        self._act(
            arguments.tenant,
            tenant_control.resume,
            {True: "resumed", False: "it was not suspended: nothing was changed"}.__getitem__,
        )

    def revoke_keys(self, arguments: argparse.Namespace) -> None:
        if not arguments.yes:
            raise Conflict("say --yes if all its keys are to end: it cannot be taken back")
        self._act(arguments.tenant, tenant_control.revoke_keys, "revoked {} keys".format)

    def mint(self, arguments: argparse.Namespace) -> None:
        def minted(session: Session, tenant_id: UUID) -> Act[str]:
            days = arguments.days
            expires_at = days and database_now(session) + timedelta(days=days)
            return tenant_control.mint(
                session, tenant_id, arguments.name, arguments.role, expires_at
            )

        self._act(arguments.tenant, minted, "key: {}".format)

    def _act(
        self,
        tenant_id: UUID,
        act: Callable[[Session, UUID], Act[_Result]],
        say: Callable[[_Result], str],
    ) -> None:
        """Do an act and say what came of it once it is committed; warn of a broken chain."""
        with self._service() as (settings, database):
            with database.transaction(tenant_id) as session:
                done = act(session, tenant_id)
            print(say(done.result))
            if done.untold is not None:
                tell_untold(settings, database, {tenant_id: done.untold})


def tell_untold(
    settings: Settings, database: Database, untold: Mapping[UUID, AuditChainBroken]
) -> None:
    """Name the broken chains that have no entry of what was just done."""
    logs.configure(settings)
    for tenant_id, error in untold.items():
        alerts.found(database, tenant_id, error)
        said = f"{error.detail} It has no entry of this; what was to be done is done."
        print(f"warning: {ids.text('ten', tenant_id)}: {said}", file=sys.stderr)


def _tenant(text: str) -> UUID:
    found = ids.parse("ten", text)
    if found is None:
        raise argparse.ArgumentTypeError("a tenant's id is ten_ and 32 hex digits: `tenant list`")
    return found


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
