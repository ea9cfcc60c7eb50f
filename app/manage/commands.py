"""Operators' commands: `python -m app.manage --help` lists them."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime

from app import ids, logs, migrations
from app.core import signing_keys, tenants
from app.core.anchoring import gate
from app.core.audit import chain_identity
from app.core.log import generations, status
from app.core.log.head import head_guard, head_store
from app.core.log.recovery import adoption, rebuild, succession
from app.core.log.sequencer import Sequencer
from app.core.master_keys import key_registry, resealing
from app.core.master_keys import status as master_key_status
from app.core.verification import alerts, daily_state, unknown_chains
from app.core.verification import jobs as verification_jobs
from app.database import Database
from app.errors import Conflict, ServiceError
from app.lib.crypto import api_keys
from app.lib.crypto.sealing import MasterKeys
from app.manage import tenants as tenant_commands
from app.manage.tenants import tell_untold
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

    tenant_commands.add(commands.add_parser("tenant", help="look after tenants"), _service)
    signing = commands.add_parser(
        "signing-key", help="look after the keys that sign bundles"
    ).add_subparsers(required=True, metavar="COMMAND")
    signing.add_parser(
        "rotate", help="retire the key that signs now and make the next; old bundles still verify"
    ).set_defaults(run=_rotate_signing_key)
    signing.add_parser("list", help="list every key there was").set_defaults(run=_list_signing_keys)
    revoke = signing.add_parser(
        "revoke", help="let nothing count that a key signed and others had not seen by then"
    )
    revoke.add_argument("key", metavar="KEY", help="its id, as `list` shows it")
    revoke.add_argument("--reason", required=True, type=_reason, help="published with the key")
    revoke.add_argument(
        "--since", type=_moment, help="when it may have leaked, if that was before now (RFC 3339)"
    )
    revoke.add_argument("--yes", action="store_true", help="it is to count no more")
    revoke.set_defaults(run=_revoke_signing_key)
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
    rebuild = commands.add_parser(
        "rebuild", help="compute the log anew from its leaves, and mend what differs"
    )
    rebuild.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if something stored differs"
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
            noted = daily_state.are_known(session)
        print(
            migrations.migrate(
                settings.database_admin_url,
                app_url=settings.database_url,
                history_days=settings.history_days,
            )
        )
        given = chain_identity.complete(database, settings.master_keys)
        if given:
            print(f"sealed the chain names of {given} tenants that had none")
        if not noted:
            with database.across_tenants() as session:
                daily_state.count_from_now(session, settings.master_keys)
            print("the daily verification of every audit chain counts from now on")
        with database.across_tenants() as session:
            key_registry.announce(session, settings.master_keys)
            missing = key_registry.missing(session, settings.master_keys)
        if missing:
            print(f"warning: {key_registry.say_missing(missing)}")
        key = settings.root_admin_key
        if key and tenants.seed(database, settings.master_keys, key):
            print("made the tenant `default` with the key in ROOT_ADMIN_KEY")


def _master_key_status(_: argparse.Namespace) -> int:
    with _service() as (settings, database):
        status = master_key_status.read(database, settings.master_keys)
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
        for line in status.lines(_sequencer(settings, database)):
            print(line)
        with database.across_tenants() as session:
            if alerts.log_is_damaged(session):
                print("found: log-damaged: `parts.audit` of /readyz says where, until it is mended")


def _log_rebuild(arguments: argparse.Namespace) -> int:
    repair = not arguments.check
    with _service() as (settings, database):
        head = head_store.opened(settings.log_head_url)
        kept = None if head is None else head.read()
        with database.across_tenants() as session:
            numbers: list[int | None] = [*generations.numbers(session)] or [None]
        reports = []
        for number in numbers:
            with database.across_tenants(snapshot=not repair) as session:
                checkpoint = None if kept is None else head_guard.read(kept)
                reports.append(rebuild.rebuild(session, checkpoint, repair=repair, number=number))
                if repair:
                    # Whether all is well again is for a verification to say.
                    verification_jobs.enqueue_daily(session)
            for line in reports[-1].lines(repair=repair):
                print(line if number == numbers[0] else f"log {number}: {line}")
    return 0 if repair or all(each.is_identical for each in reports) else 1


def _log_adopt(arguments: argparse.Namespace) -> None:
    _require_yes(arguments, "this is the newest database of the log, and not a restored one")
    with _service() as (settings, database):
        head = adoption.adopt(_sequencer(settings, database))
    print(f"head: {head.size} leaves of {head.origin}")


def _log_succeed(arguments: argparse.Namespace) -> None:
    with _service() as (settings, database):
        sequencer = _sequencer(settings, database)
        if not arguments.yes:
            succession.refuse_if_mendable(sequencer)
        what = "the log is to end, and a new one with a new key to begin behind it"
        _require_yes(arguments, what)
        new = succession.succeed(sequencer, settings.master_keys, force=arguments.force)
        for line in (f"the log is {new.generation.origin} now", *status.lines(sequencer)):
            print(line)
        tell_untold(settings, database, new.untold)


def _require_yes(arguments: argparse.Namespace, what: str) -> None:
    if not arguments.yes:
        raise Conflict(f"say --yes if {what}: it cannot be taken back")


def _sequencer(settings: Settings, database: Database) -> Sequencer:
    head = head_store.opened(settings.log_head_url)
    return Sequencer(
        database, settings.master_keys, settings.log_origin, head, gate.opened(settings)
    )


def _rotate_signing_key(_: argparse.Namespace) -> None:
    with _service() as (settings, database):
        with database.across_tenants() as session:
            done = signing_keys.rotate(session, settings.master_keys)
        print(f"retired: {done.retired or 'none'}\ncurrent: {done.current}")
        tell_untold(settings, database, done.untold)


def _reason(text: str) -> str:
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,200}", text) or not text.strip():
        raise argparse.ArgumentTypeError("a reason is one line of 1 to 200 characters")
    return text.strip()


def _moment(text: str) -> datetime:
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    raise argparse.ArgumentTypeError("write a moment as 2026-01-31T12:00:00Z")


def _revoke_signing_key(arguments: argparse.Namespace) -> None:
    _require_yes(
        arguments,
        "of all that this key signed only what a timestamp or a quorum of witnesses had seen by"
        " then is to verify",
    )
    key_id, reason = arguments.key, arguments.reason
    with _service() as (settings, database):
        with database.across_tenants() as session:
            done = signing_keys.revoke(
                session, settings.master_keys, key_id, reason, arguments.since
            )
        print(f"revoked: {key_id}" + (f"\ncurrent: {done.successor}" if done.successor else ""))
        tell_untold(settings, database, done.untold)


def _list_signing_keys(_: argparse.Namespace) -> None:
    with _service() as (_settings, database), database.across_tenants() as session:
        for key in signing_keys.rows(session):
            state = "current" if key.retired_at is None else f"retired {key.retired_at:%Y-%m-%d}"
            if key.revoked_at is not None:
                state = f"revoked {key.revoked_at:%Y-%m-%d}: {key.revocation_reason}"
            print(f"{key.key_id}  {key.purpose:6}  {key.created_at:%Y-%m-%d}  {state}")


@contextmanager
def _service() -> Iterator[tuple[Settings, Database]]:
    settings = load()
    database = Database(settings.database_url, pool_size=2, application="record-service manage")
    try:
        yield settings, database
    finally:
        database.close()
