"""The commands `python -m app.manage log …`."""

from collections.abc import Mapping
from uuid import UUID

import click

from app.core.anchoring import monitor
from app.core.log import head_guard, head_store, history, succession
from app.core.log import rebuild as rebuilding
from app.core.log import status as log_status
from app.core.log.history import History
from app.core.log.sequencer import Sequencer
from app.core.verification import alerts
from app.core.verification import daily as verification_jobs
from app.database import Database
from app.errors import AuditChainBroken, LogGoesOn
from app.manage.service import require_yes, service, tell_untold
from app.settings import Settings


@click.group()
def log() -> None:
    """Manage the transparency log."""


@log.command()
def status() -> None:
    """Show the state of the log."""
    with service() as (settings, database):
        _show(database, head_store.opened(settings.log_head_url))
        with database.across_tenants() as session:
            if alerts.log_is_damaged(session):
                print("found: log-damaged: `parts.audit` of /readyz says where, until it is mended")


@log.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if something stored differs.")
def rebuild(check: bool) -> int:
    """Recompute the log from its leaves, and repair what differs."""
    with service() as (settings, database):
        keys = None if check else settings.master_keys
        head = head_store.opened(settings.log_head_url)
        kept = None if head is None else head.read()
        with database.across_tenants(snapshot=check) as session:
            checkpoint = None if kept is None else head_guard.read(kept)
            found = rebuilding.rebuild(session, checkpoint, repair_with=keys)
            if not check:
                # Whether all is well again is for a verification to say.
                verification_jobs.enqueue_daily(session)
    for line in found.lines(repair=not check):
        print(line)
    return 1 if check and not found.is_identical else 0


@log.command()
def verify() -> None:
    """Have a worker verify all of the log, from its first leaf."""
    with service() as (settings, database), database.across_tenants() as session:
        verification_jobs.forget_walk(session, settings.master_keys)
        verification_jobs.enqueue_daily(session)
    print("a worker walks all of the log: `parts.audit` of /readyz says what it finds")


@log.command()
@click.option("--yes", is_flag=True, help="Confirm: this is the newest database.")
def adopt(yes: bool) -> None:
    """Store the database's head at LOG_HEAD_URL, which has none."""
    require_yes(yes, "this is the newest database of the log, and not a restored one")
    with service() as (settings, database):
        head = succession.adopt(_sequencer(settings, database))
    print(f"head: {head.size} leaves of {head.origin}")


@log.command()
@click.option("--yes", is_flag=True, help="Confirm: the old log ends.")
@click.option("--force", is_flag=True, help="Even if it could go on.")
def succeed(yes: bool, force: bool) -> None:
    """Begin a new log behind the old one, after an older database was restored."""
    with service() as (settings, database):
        sequencer = _sequencer(settings, database)
        past = History(database, head_store.beside(settings.log_head_url))
        history.look_again(past, sequencer)
        lost = past.unaccepted()
        if lost is not None:
            print(f"lost: {history.said(lost)}")
        if not yes:
            succession.refuse_if_mendable(sequencer)
        what = "what is lost stays lost; a log that cannot go on ends, and another begins behind it"
        require_yes(yes, what)
        untold: Mapping[UUID, AuditChainBroken] = {}
        try:
            new = succession.succeed(sequencer, settings.master_keys, force=force)
        except LogGoesOn as error:
            if lost is None:
                raise
            print(f"the log goes on: {error.detail}")
        else:
            untold = new.untold
            print(f"the log is {new.generation.origin} now")
        if past.accept() is not None:
            print("the epoch is accepted: marks are kept at LOG_HEAD_URL again")
        _show(database, sequencer.head)
        tell_untold(settings, database, untold)


def _show(database: Database, head: head_store.HeadStore | None) -> None:
    for line in log_status.lines(log_status.read(database, head)):
        print(line)


def _sequencer(settings: Settings, database: Database) -> Sequencer:
    head = head_store.opened(settings.log_head_url)
    return Sequencer(
        database, settings.master_keys, settings.log_origin, head, monitor.gate(settings)
    )
