"""Operators' commands: `python -m app.manage --help` lists them."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from app import ids, migrations
from app.core import tenants
from app.database import Database
from app.errors import ServiceError
from app.lib import api_keys
from app.lib.sealing import MasterKeys
from app.settings import SettingError, Settings, load

_GENERATORS: Mapping[str, Callable[[], str]] = {
    "master-key": MasterKeys.generate,
    "root-admin-key": api_keys.new,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, or 1 with one line on standard error."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
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

    generate = commands.add_parser(
        "generate", help="print a fresh value for the setting MASTER_KEYS or ROOT_ADMIN_KEY"
    )
    generate.add_argument("what", choices=sorted(_GENERATORS))
    generate.set_defaults(run=_generate)

    tenant = commands.add_parser("tenant", help="make and list tenants").add_subparsers(
        required=True, metavar="COMMAND"
    )
    create = tenant.add_parser("create", help="make a tenant; prints its root admin key, once")
    create.add_argument("name", metavar="NAME")
    create.set_defaults(run=_create_tenant)
    tenant.add_parser("list", help="list the tenants").set_defaults(run=_list_tenants)
    return parser


def _migrate(_: argparse.Namespace) -> None:
    with _service() as (settings, database):
        print(migrations.migrate(settings.database_admin_url, app_url=settings.database_url))
        if settings.root_admin_key and tenants.seed(database, settings.root_admin_key):
            print("made the tenant `default` with the key in ROOT_ADMIN_KEY")


def _generate(arguments: argparse.Namespace) -> None:
    print(_GENERATORS[arguments.what]())


def _create_tenant(arguments: argparse.Namespace) -> None:
    with _service() as (_, database):
        tenant_id, key = tenants.create(database, arguments.name)
    print(f"tenant: {ids.text('ten', tenant_id)}\nkey: {key}")


def _list_tenants(_: argparse.Namespace) -> None:
    with _service() as (_settings, database), database.across_tenants() as session:
        for tenant in tenants.rows(session):
            print(f"{ids.text('ten', tenant.id)}  {tenant.created_at:%Y-%m-%d}  {tenant.name}")


@contextmanager
def _service() -> Iterator[tuple[Settings, Database]]:
    settings = load()
    database = Database(settings.database_url, pool_size=2, application="record-service manage")
    try:
        yield settings, database
    finally:
        database.close()


if __name__ == "__main__":
    sys.exit(main())
