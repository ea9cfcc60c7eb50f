"""Operators' commands: `python -m app.manage migrate | tenant create NAME | tenant list`."""

import argparse
import sys
from collections.abc import Sequence

from app import ids, migrations
from app.core import tenants
from app.database import Database
from app.errors import ServiceError
from app.settings import SettingError, Settings, load


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, or 1 with one line on standard error."""
    arguments = _parser().parse_args(argv)
    try:
        settings = load()
        database = Database(settings.database_url, pool_size=1, application="record-service manage")
        try:
            arguments.run(settings, database, arguments)
        finally:
            database.close()
    except (SettingError, ServiceError, migrations.MigrationError) as error:
        print(f"manage: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app.manage", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    migrate = commands.add_parser(
        "migrate", help="bring the database to this release; seed the ROOT_ADMIN_KEY, if set"
    )
    migrate.set_defaults(run=_migrate)

    tenant = commands.add_parser("tenant", help="make and list tenants").add_subparsers(
        required=True, metavar="COMMAND"
    )
    create = tenant.add_parser("create", help="make a tenant; prints its root admin key, once")
    create.add_argument("name", metavar="NAME")
    create.set_defaults(run=_create_tenant)
    tenant.add_parser("list", help="list the tenants").set_defaults(run=_list_tenants)
    return parser


def _migrate(settings: Settings, database: Database, _: argparse.Namespace) -> None:
    done = migrations.migrate(settings.database_admin_url, app_url=settings.database_url)
    print(done)
    if settings.root_admin_key and tenants.seed(database, settings.root_admin_key):
        print("made the tenant `default` with the key in ROOT_ADMIN_KEY")


def _create_tenant(_: Settings, database: Database, arguments: argparse.Namespace) -> None:
    tenant_id, key = tenants.create(database, arguments.name)
    print(f"tenant: {ids.text('ten', tenant_id)}\nkey: {key}")


def _list_tenants(_: Settings, database: Database, _arguments: argparse.Namespace) -> None:
    with database.across_tenants() as session:
        for tenant in tenants.rows(session):
            print(f"{ids.text('ten', tenant.id)}  {tenant.created_at:%Y-%m-%d}  {tenant.name}")


if __name__ == "__main__":
    sys.exit(main())
