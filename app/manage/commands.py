"""Operators' commands: `python -m app.manage --help` lists them."""

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from app import logs, migrations
from app.core import signing_keys
from app.core import tenants as core_tenants
from app.core.master_keys import key_registry
from app.core.records import records
from app.core.verification import sealed_notes
from app.errors import ServiceError
from app.lib.crypto import api_keys
from app.lib.crypto.sealing import MasterKeys
from app.manage import blobs, keys, log, tenants
from app.manage.doctor import command as doctor
from app.manage.service import service
from app.settings import SettingError

_GENERATORS: Mapping[str, Callable[[], str]] = {
    "master-key": MasterKeys.generate,
    "root-admin-key": api_keys.new,
}
# As a shell reports a program that SIGPIPE ended.
_CLOSED_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, or 1 with one line on standard error.

    141 where `head` and the like had read enough before the command was done.
    """
    arguments = _parser().parse_args(argv)
    # Names and addresses may have characters that a terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = arguments.run(arguments) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes again as it ends, which would be a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
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

    doctor.add(
        commands.add_parser(
            "doctor", help="check everything, and say what mends it; exit 1 if something failed"
        )
    )
    tenants.add(commands.add_parser("tenant", help="manage tenants"))
    keys.add_console_key(
        commands.add_parser("console-key", help="make a key that signs an operator in to /console")
    )
    keys.add_signing_keys(
        commands.add_parser("signing-key", help="manage the keys that sign bundles")
    )
    keys.add_master_keys(commands.add_parser("master-key", help="manage the keys of MASTER_KEYS"))
    audited = commands.add_parser("audit", help="manage the audit chains").add_subparsers(
        required=True, metavar="COMMAND"
    )
    acknowledge = audited.add_parser(
        "acknowledge", help="acknowledge a chain in the log whose tenant was removed on purpose"
    )
    acknowledge.add_argument("chain", metavar="CHAIN", type=_chain, help="its name, in hex")
    acknowledge.set_defaults(run=_acknowledge_chain)
    blobs.add(commands.add_parser("blobs", help="manage what lies in the object store"))
    log.add(commands.add_parser("log", help="manage the transparency log"))
    return parser


def _migrate(_: argparse.Namespace) -> None:
    with service() as (settings, database):
        print(
            migrations.migrate(
                settings.database_admin_url,
                app_url=settings.database_url,
                history_days=settings.history_days,
            )
        )
        with database.across_tenants() as session:
            records.renumber_restored(session)
            key_registry.announce(session, settings.master_keys)
            missing = key_registry.missing(session, settings.master_keys)
            problems = signing_keys.certificate_problems(session, settings.signing_certificates)
        if problems:
            raise SettingError("; ".join(problems))
        if missing:
            print(f"warning: {key_registry.say_missing(missing)}")
        key = settings.root_admin_key
        if key and core_tenants.seed(database, settings.master_keys, key):
            print("made the tenant `default` with the key in ROOT_ADMIN_KEY")


def _generate(arguments: argparse.Namespace) -> None:
    print(_GENERATORS[arguments.what]())


def _chain(text: str) -> bytes:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError("a chain's name is 64 lower-case hex digits")
    return bytes.fromhex(text)


def _acknowledge_chain(arguments: argparse.Namespace) -> None:
    with service() as (settings, database):
        logs.configure(settings)
        with database.across_tenants() as session:
            sealed_notes.acknowledge(session, settings.master_keys, arguments.chain)
