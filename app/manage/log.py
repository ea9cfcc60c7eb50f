"""The commands `python -m app.manage log …`."""

import argparse
from collections.abc import Mapping
from uuid import UUID

from app.core.anchoring import monitor
from app.core.log import head_guard, head_store, history, rebuild, status, succession
from app.core.log.history import History
from app.core.log.sequencer import Sequencer
from app.core.verification import alerts
from app.core.verification import daily as verification_jobs
from app.database import Database
from app.errors import AuditChainBroken, LogGoesOn
from app.manage.service import require_yes, service, tell_untold
from app.settings import Settings


def add(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `log`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("status", help="show the state of the log").set_defaults(run=_status)
    rebuilding = commands.add_parser(
        "rebuild", help="recompute the log from its leaves, and repair what differs"
    )
    rebuilding.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if something stored differs"
    )
    rebuilding.set_defaults(run=_rebuild)
    commands.add_parser(
        "verify", help="have a worker verify all of the log, from its first leaf"
    ).set_defaults(run=_verify)
    adopt = commands.add_parser(
        "adopt", help="store the database's head at LOG_HEAD_URL, which has none"
    )
    adopt.add_argument("--yes", action="store_true", help="confirm: this is the newest database")
    adopt.set_defaults(run=_adopt)
    succeed = commands.add_parser(
        "succeed", help="begin a new log behind the old one, after an older database was restored"
    )
    succeed.add_argument("--yes", action="store_true", help="confirm: the old log ends")
    succeed.add_argument("--force", action="store_true", help="even if it could go on")
    succeed.set_defaults(run=_succeed)


def _status(_: argparse.Namespace) -> None:
    with service() as (settings, database):
        for line in status.lines(status.read(database, head_store.opened(settings.log_head_url))):
            print(line)
        with database.across_tenants() as session:
            if alerts.log_is_damaged(session):
                print("found: log-damaged: `parts.audit` of /readyz says where, until it is mended")


def _rebuild(arguments: argparse.Namespace) -> int:
    repair = not arguments.check
    with service() as (settings, database):
        keys = settings.master_keys if repair else None
        head = head_store.opened(settings.log_head_url)
        kept = None if head is None else head.read()
        with database.across_tenants(snapshot=not repair) as session:
            checkpoint = None if kept is None else head_guard.read(kept)
            found = rebuild.rebuild(session, checkpoint, repair_with=keys)
            if repair:
                # Whether all is well again is for a verification to say.
                verification_jobs.enqueue_daily(session)
    for line in found.lines(repair=repair):
        print(line)
    return 0 if repair or found.is_identical else 1


def _verify(_: argparse.Namespace) -> None:
    with service() as (settings, database), database.across_tenants() as session:
        verification_jobs.forget_walk(session, settings.master_keys)
        verification_jobs.enqueue_daily(session)
    print("a worker walks all of the log: `parts.audit` of /readyz says what it finds")


def _adopt(arguments: argparse.Namespace) -> None:
    require_yes(arguments, "this is the newest database of the log, and not a restored one")
    with service() as (settings, database):
        head = succession.adopt(_sequencer(settings, database))
    print(f"head: {head.size} leaves of {head.origin}")


def _succeed(arguments: argparse.Namespace) -> None:
    with service() as (settings, database):
        sequencer = _sequencer(settings, database)
        past = History(database, head_store.beside(settings.log_head_url))
        history.look_again(past, sequencer)
        lost = past.unaccepted()
        if lost is not None:
            print(f"lost: {history.said(lost)}")
        if not arguments.yes:
            succession.refuse_if_mendable(sequencer)
        what = "what is lost stays lost; a log that cannot go on ends, and another begins behind it"
        require_yes(arguments, what)
        untold: Mapping[UUID, AuditChainBroken] = {}
        try:
            new = succession.succeed(sequencer, settings.master_keys, force=arguments.force)
        except LogGoesOn as error:
            if lost is None:
                raise
            print(f"the log goes on: {error.detail}")
        else:
            untold = new.untold
            print(f"the log is {new.generation.origin} now")
        if past.accept() is not None:
            print("the epoch is accepted: marks are kept at LOG_HEAD_URL again")
        for line in status.lines(status.read(database, sequencer.head)):
            print(line)
        tell_untold(settings, database, untold)


def _sequencer(settings: Settings, database: Database) -> Sequencer:
    head = head_store.opened(settings.log_head_url)
    return Sequencer(
        database, settings.master_keys, settings.log_origin, head, monitor.gate(settings)
    )
