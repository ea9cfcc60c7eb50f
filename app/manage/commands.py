"""Operators' commands: `python -m app.manage --help` lists them."""

import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

import click

from app import logs, migrations
from app.core import signing_keys, tenants
from app.core.master_keys import key_registry
from app.core.records import records
from app.core.verification import alerts
from app.errors import ServiceError
from app.lib.crypto import api_keys
from app.lib.crypto.sealing import MasterKeys
from app.manage.blobs import blobs
from app.manage.doctor.command import doctor
from app.manage.keys import console_key, master_key, signing_key
from app.manage.log import log
from app.manage.service import service
from app.manage.tenants import tenant
from app.settings import SettingError

_GENERATORS: Mapping[str, Callable[[], str]] = {
    "master-key": MasterKeys.generate,
    "root-admin-key": api_keys.new,
}
# As a shell reports a program that SIGPIPE ended.
_CLOSED_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, or 1 with one line on standard error.

    2 for wrong usage; 141 where `head` and the like had read enough before the command was done.
    """
    # Names and addresses may have characters that a terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int | None = manage.main(argv, "python -m app.manage", standalone_mode=False)
        sys.stdout.flush()
        return status or 0
    except BrokenPipeError:
        # Python flushes again as it ends, which would be a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (SettingError, ServiceError, migrations.MigrationError) as error:
        print(f"manage: {error}", file=sys.stderr)
        return 1


@click.group()
def manage() -> None:
    """Operators' commands."""


@manage.command()
def migrate() -> None:
    """Bring the database to this release; seed the ROOT_ADMIN_KEY, if set."""
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
        if key and tenants.seed(database, settings.master_keys, key):
            print("made the tenant `default` with the key in ROOT_ADMIN_KEY")


@manage.command()
@click.argument("what", type=click.Choice(sorted(_GENERATORS)))
def generate(what: str) -> None:
    """Print a fresh value for the setting MASTER_KEYS or ROOT_ADMIN_KEY."""
    print(_GENERATORS[what]())


@click.group()
def audit() -> None:
    """Manage the audit chains."""


@audit.command()
@click.argument("chain")
def acknowledge(chain: str) -> None:
    """Acknowledge a chain in the log, by its name, whose tenant was removed on purpose."""
    if not re.fullmatch("[0-9a-f]{64}", chain):
        raise click.BadParameter("a chain's name is 64 lower-case hex digits")
    with service() as (settings, database):
        logs.configure(settings)
        with database.across_tenants() as session:
            alerts.acknowledge(session, settings.master_keys, bytes.fromhex(chain))


for _command in (doctor, tenant, console_key, signing_key, master_key, audit, blobs, log):
    manage.add_command(_command)
