"""Operators' commands: `python -m app.manage --help` lists them."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from app import ids, logs, migrations
from app.core import signing_keys, tenants
from app.core.audit import salts
from app.core.audit.verification import runs, unknown_chains
from app.core.log import adoption, heads, rebuild, status, succession
from app.core.log.keeper import Keeper
from app.core.sealed import resealing, usage
from app.core.sealed import status as sealed_status
from app.database import Database
from app.errors import Conflict, ServiceError
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
        return arguments.run(arguments) or 0
    except (SettingError, ServiceError, migrations.MigrationError) as error:
        print(f"manage: {error}", file=sys.stderr)
        return 1


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
    signing = commands.add_parser(
        "signing-key", help="look after the keys that sign bundles"
    ).add_subparsers(required=True, metavar="COMMAND")
    signing.add_parser(
        "rotate", help="retire the key that signs now and make the next; old bundles still verify"
    ).set_defaults(run=_rotate_signing_key)
    signing.add_parser("list", help="list every key there was").set_defaults(run=_list_signing_keys)
    _add_master_key(commands.add_parser("master-key", help="look after the keys of MASTER_KEYS"))
    audited = commands.add_parser("audit", help="look after the audit chains").add_subparsers(
        required=True, metavar="COMMAND"
    )
    acknowledge = audited.add_parser(
        "acknowledge", help="close a chain in the log whose tenant was removed on purpose"
    )
    acknowledge.add_argument("chain", metavar="CHAIN", type=_chain, help="its name, in hex")
    acknowledge.set_defaults(run=_acknowledge_chain)
    _add_log(commands.add_parser("log", help="look after the transparency log"))
    return parser


def _add_master_key(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser(
        "status", help="say what is sealed under each key, and which may be dropped; 1 if one lacks"
    ).set_defaults(run=_master_key_status)
    reseal = commands.add_parser(
        "reseal", help="have a worker seal everything anew under the key in front"
    )
    reseal.add_argument(
        "--force", action="store_true", help="even if a process lately had another key in front"
    )
    reseal.set_defaults(run=_reseal)


def _add_log(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("status", help="say how the log is doing").set_defaults(run=_log_status)
    rebuild = commands.add_parser("rebuild", help="compute every tile anew from the leaves")
    rebuild.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if a stored tile differs"
    )
    rebuild.set_defaults(run=_log_rebuild)
    adopt = commands.add_parser("adopt", help="keep the database's head where none is any more")
    adopt.add_argument("--yes", action="store_true", help="this is the newest database")
    adopt.set_defaults(run=_log_adopt)
    succeed = commands.add_parser(
        "succeed", help="begin a new log behind the old one, after an older database was restored"
    )
    succeed.add_argument("--yes", action="store_true", help="the old log is to end")
    succeed.add_argument("--force", action="store_true", help="even if it could go on")
    succeed.set_defaults(run=_log_succeed)


def _migrate(_: argparse.Namespace) -> None:
    with _service() as (settings, database):
        with database.across_tenants() as session:
            noted = runs.are_known(session)
        print(migrations.migrate(settings.database_admin_url, app_url=settings.database_url))
        given = salts.complete(database, settings.master_keys)
        if given:
            print(f"sealed the chain names of {given} tenants that had none")
        if not noted:
            with database.across_tenants() as session:
                runs.count_from_now(session, settings.master_keys)
            print("the daily verification of every audit chain counts from now on")
        with database.across_tenants() as session:
            usage.announce(session, settings.master_keys)
            missing = usage.missing(session, settings.master_keys)
        if missing:
            print(f"warning: {usage.say_missing(missing)}")
        key = settings.root_admin_key
        if key and tenants.seed(database, settings.master_keys, key):
            print("made the tenant `default` with the key in ROOT_ADMIN_KEY")


def _master_key_status(_: argparse.Namespace) -> int:
    with _service() as (settings, database):
        status = sealed_status.read(database, settings.master_keys)
        for line in status.lines():
            print(line)
    return 1 if status.missing else 0


def _reseal(arguments: argparse.Namespace) -> None:
    with _service() as (settings, database):
        with database.across_tenants() as session:
            job = resealing.begin(session, settings.master_keys, force=arguments.force)
        newest = settings.master_keys.ids[0]
        print(f"a worker seals everything anew under {newest}: {ids.text('job', job.id)}")
        print("`python -m app.manage master-key status` says how far it has come")


def _generate(arguments: argparse.Namespace) -> None:
    print(_GENERATORS[arguments.what]())


def _create_tenant(arguments: argparse.Namespace) -> None:
    with _service() as (settings, database):
        tenant_id, key = tenants.create(database, settings.master_keys, arguments.name)
    print(f"tenant: {ids.text('ten', tenant_id)}\nkey: {key}")


def _list_tenants(_: argparse.Namespace) -> None:
    with _service() as (_settings, database), database.across_tenants() as session:
        for tenant in tenants.rows(session):
            print(f"{ids.text('ten', tenant.id)}  {tenant.created_at:%Y-%m-%d}  {tenant.name}")


def _chain(text: str) -> bytes:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError("a chain's name is 64 lower-case hex digits")
    return bytes.fromhex(text)


def _acknowledge_chain(arguments: argparse.Namespace) -> None:
    with _service() as (settings, database):
        logs.configure(settings)
        with database.across_tenants() as session:
            unknown_chains.acknowledge(session, settings.master_keys, arguments.chain)


def _log_status(_: argparse.Namespace) -> None:
    with _service() as (settings, database):
        for line in status.lines(_keeper(settings, database)):
            print(line)


def _log_rebuild(arguments: argparse.Namespace) -> int:
    repair = not arguments.check
    with _service() as (_, database), database.across_tenants(snapshot=not repair) as session:
        report = rebuild.rebuild(session, repair=repair)
    print(f"{report.leaves} leaves, {report.tiles} tiles")
    if report.first is None:
        print("every stored tile is identical")
        return 0
    print(f"{len(report.wrong)} tiles differ, the first is {report.first}")
    print("they were written anew" if repair else "nothing was changed")
    return 0 if repair else 1


def _log_adopt(arguments: argparse.Namespace) -> None:
    _require_yes(arguments, "this is the newest database of the log, and not a restored one")
    with _service() as (settings, database):
        head = adoption.adopt(_keeper(settings, database))
    print(f"head: {head.size} leaves of {head.origin}")


def _log_succeed(arguments: argparse.Namespace) -> None:
    _require_yes(arguments, "the log is to end, and a new one with a new key to begin behind it")
    with _service() as (settings, database):
        keeper = _keeper(settings, database)
        new = succession.succeed(keeper, settings.master_keys, force=arguments.force)
        for line in (f"the log is {new.origin} now", *status.lines(keeper)):
            print(line)


def _require_yes(arguments: argparse.Namespace, what: str) -> None:
    if not arguments.yes:
        raise Conflict(f"say --yes if {what}: it cannot be taken back")


def _keeper(settings: Settings, database: Database) -> Keeper:
    head = heads.opened(settings.log_head_url)
    return Keeper(database, settings.master_keys, settings.log_origin, head)


def _rotate_signing_key(_: argparse.Namespace) -> None:
    with _service() as (settings, database), database.across_tenants() as session:
        retired, current = signing_keys.rotate(session, settings.master_keys)
    print(f"retired: {retired or 'none'}\ncurrent: {current}")


def _list_signing_keys(_: argparse.Namespace) -> None:
    with _service() as (_settings, database), database.across_tenants() as session:
        for key in signing_keys.rows(session):
            state = "current" if key.retired_at is None else f"retired {key.retired_at:%Y-%m-%d}"
            print(f"{key.key_id}  {key.purpose:6}  {key.created_at:%Y-%m-%d}  {state}")


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
