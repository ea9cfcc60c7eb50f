"""Periodic actors, each named as in the timetable; `sweep` and `prune_history` have modules."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app.core import finding_search, word_index
from app.core.anchoring import checkpoint_round, cosigning, heads, incidents, monitor, timestamping
from app.core.blobs import store
from app.core.delivery import hours
from app.core.digests import alerts, schedule
from app.core.digests.alerts import AlertSending
from app.core.digests.digest_mail import DigestSending
from app.core.erasure import archiving, erasing, moving
from app.core.exports import exports
from app.core.health import tenant_figures
from app.core.jobs import leases
from app.core.log import history
from app.core.master_keys import key_registry, resealing
from app.core.records import expiry, finding_expiry, search, statements
from app.core.verification import daily
from app.core.word_index import Source
from app.errors import Conflict, LogHalted, LogRolledBack, Unavailable
from app.settings import Settings
from jobs.process.runtime import Runtime

_log = structlog.get_logger(__name__)
_Given = TypeVar("_Given")

INTEGRATE_SECONDS = 5.0
ASSEMBLE_SECONDS = 5.0
SEAL_SECONDS = 5.0
# Time budget for one source of words, looked at after a piece of so many tenants; searches read the
# rest meanwhile.
INDEX_SECONDS = 4.0
MOST_TENANTS = 10
IDLE_SECONDS = EXPORTS_SECONDS = 10.0
# Time budget; the next tick continues, as ticks share two threads with the sweep and the jobs.
DIGEST_SECONDS = 10.0


def _across(work: Callable[[Session], object]) -> Callable[[Runtime], None]:
    """Return the actor whose work is one transaction that sees all tenants."""
    return _where(lambda _: True, lambda session, _: work(session))


def _where(
    setting: Callable[[Settings], _Given | None], work: Callable[[Session, _Given], object]
) -> Callable[[Runtime], None]:
    """Return such an actor for an installation that has this setting."""

    def act(here: Runtime) -> None:
        given = setting(here.settings)
        if given is not None:
            with here.database.across_tenants() as session:
                work(session, given)

    return act


def _tend_objects(session: Session, _: str) -> None:
    erasing.enqueue_due(session)
    moving.order_waiting(session)


# Each minute: jobs that are due too late (the sweep then rings them), how many deliveries wait,
# what is to be erased in the object store or to go there. Each five: the operator's list.
free_stuck_jobs = _across(leases.free_stuck)
look_at_backlog = _across(hours.note_backlog)
tend_objects = _where(lambda has: has.blob_url, _tend_objects)
figure_tenants = _across(tenant_figures.compute)
# Daily, each as a job: the verification of every audit chain, unless one is open; what is older
# than FINDINGS_DAYS and AUDIT_ARCHIVE_DAYS; objects that no row has ever named.
verify_audit = _across(daily.enqueue_daily)
expire_findings = _where(lambda has: has.findings_days, finding_expiry.enqueue_due)
archive_audit = _where(lambda has: has.audit_archive_days, archiving.enqueue_due)
sweep_objects = _where(lambda has: has.blob_url, lambda session, _: erasing.enqueue_sweep(session))


def integrate(here: Runtime) -> None:
    """Each second while leaves wait: integrate them into the log, and publish it.

    Logs an alarm when the log is halted. Then look whether the database lost its end.
    """
    more = False
    try:
        more = here.log.tick(time.monotonic() + INTEGRATE_SECONDS)
    except LogHalted as error:
        _log.critical("log_halted", problem=error.slug, detail=error.detail)
        if isinstance(error, LogRolledBack):
            history.look_again(here.history, here.log)
    if more:
        here.bell.ring("integrate", ())
    try:
        here.history.tick()
    except LogHalted as error:
        _log.critical("history_not_watched", problem=error.slug, detail=error.detail)


def assemble(here: Runtime) -> None:
    """Each second while traces are due: assemble their spans into records."""
    if here.assembler.run(time.monotonic() + ASSEMBLE_SECONDS):
        here.bell.ring("assemble", ())


def seal_sessions(here: Runtime) -> None:
    """Each second while completed sessions wait: sign their statements."""
    until = time.monotonic() + SEAL_SECONDS
    if statements.seal_due(here.database, here.settings.master_keys, until):
        here.bell.ring("seal_sessions", ())


def index_words(here: Runtime) -> None:
    """Each ten seconds: index the words of new findings and records, a piece of each tenant.

    A tenant whose piece fails is logged, and comes last until one succeeds.
    """
    for source in (finding_search.SOURCE, search.source(here.settings.master_keys)):
        deadline = time.monotonic() + INDEX_SECONDS
        with here.database.across_tenants() as session:
            below, began = word_index.floor(session)
        while time.monotonic() < deadline:
            with here.database.across_tenants() as session:
                tenants = word_index.behind(session, source, below, began, MOST_TENANTS)
            for tenant_id in tenants:
                try:
                    here.fetching(partial(_index, here, source, tenant_id, below))
                except Exception as error:  # noqa: BLE001  # the fault of one tenant is no other's
                    told = {"tenant": str(tenant_id), "source": source.table}
                    _log.error("words_not_indexed", **told, exc_info=error)
                    with here.database.transaction(tenant_id) as session:
                        word_index.put_last(session, source, tenant_id)
            if not tenants:
                break


def _index(here: Runtime, source: Source, tenant_id: UUID, below: UUID) -> None:
    with here.database.transaction(tenant_id) as session:
        word_index.index_piece(session, source, tenant_id, below)


def check_master_keys(here: Runtime) -> None:
    """Each minute: log an alarm if this worker lacks a master key that is in use."""
    with here.database.across_tenants() as session:
        missing = key_registry.missing(session, here.settings.master_keys)
    if missing:
        _log.critical(
            "master_key_missing", missing=missing, detail=key_registry.say_missing(missing)
        )


def reseal(here: Runtime) -> None:
    """Each hour: seal anew what an older key sealed, once no process has that in front."""
    keys = here.settings.master_keys
    with here.database.across_tenants() as session:
        if not key_registry.older(session, keys):
            return
    with suppress(Conflict):
        resealing.reseal(here.database, keys, store.of(here.settings.blob_url))
        # It also notes which keys nothing is under any more.
        resealing.report(here.database, keys)


def complete_idle_sessions(here: Runtime) -> None:
    """Each minute: complete sessions that nothing came to for SESSION_IDLE_SECONDS."""
    deadline = time.monotonic() + IDLE_SECONDS
    idle = here.settings.session_idle
    more = True
    while more and time.monotonic() < deadline:
        with here.database.across_tenants() as session:
            more = statements.complete_idle(session, idle)


def expire_bundles(here: Runtime) -> None:
    """Each five minutes: enqueue a job for each tenant with expired bundles.

    Then delete the files of exports whose days have passed.
    """
    with here.database.across_tenants() as session:
        tenants = expiry.tenants_with_retention(session)
    for tenant_id in tenants:
        with here.database.transaction(tenant_id) as session:
            expiry.enqueue_due(session, tenant_id)
    until = time.monotonic() + EXPORTS_SECONDS
    exports.expire(here.database, here.settings, lambda: time.monotonic() < until)


def send_digests(here: Runtime) -> None:
    """Each minute: enqueue due digests, and those whose job has died."""
    began = time.monotonic()
    with here.database.across_tenants() as session:
        schedule.follow_the_clock(session)
        tenants = schedule.due_tenants(session, here.settings.digest_settle)
        forgotten = DigestSending.forgotten(session)
    settle = here.settings.digest_settle
    _each(here, forgotten, DigestSending.enqueue, began + DIGEST_SECONDS / 2)
    claim = partial(schedule.claim, settle=settle)
    _each(here, [(tenant_id,) for tenant_id in tenants], claim, began + DIGEST_SECONDS)


def send_alerts(here: Runtime) -> None:
    """Each minute: note new troubles, and enqueue mails that are due, or whose job has died."""
    began = time.monotonic()
    with here.database.across_tenants() as session:
        tenants, forgotten = alerts.due_tenants(session), AlertSending.forgotten(session)
    _each(here, forgotten, AlertSending.enqueue, began + DIGEST_SECONDS / 2)
    _each(here, [(tenant_id,) for tenant_id in tenants], alerts.note, began + DIGEST_SECONDS)


def _each(
    here: Runtime,
    due: Sequence[tuple[UUID, ...]],
    act: Callable[..., object],
    until: float,
) -> None:
    """Call `act` for each of `due` (the tenant's id comes first), in a transaction of its own."""
    for named in due:
        if time.monotonic() > until:
            break
        try:
            with here.database.transaction(named[0]) as session:
                act(session, *named)
        except Unavailable as error:
            _log.warning("mail_not_claimed", tenant=str(named[0]), why=str(error))


def anchor_audit(here: Runtime) -> None:
    """Each ten minutes: enqueue the anchoring of chain heads, and a missed daily verification.

    Checks first that the log integrates its leaves.
    """
    with here.database.across_tenants() as session:
        monitor.watch_log(session)
        heads.enqueue_due(session)
        if daily.watch(session, here.settings.master_keys):
            daily.enqueue_daily(session)


def stamp_checkpoint(here: Runtime) -> None:
    """Each ten minutes: enqueue timestamping and cosigning of the newest checkpoint.

    A minute after `anchor_audit`: it checks that heads were anchored.
    """
    policy = here.settings.witness_policy
    parts = [*monitor.PARTS, *map(cosigning.part, cosigning.asked(policy))]
    with here.database.across_tenants() as session:
        last, shown = checkpoint_round.chosen(session), checkpoint_round.shown(session)
        monitor.watch_heads(session)
        if not here.settings.log_require_quorum:
            monitor.watch_quorum(session, policy)
        if here.settings.tsa_url is not None:
            parts.append(timestamping.PART)
            if last is not None:
                timestamping.enqueue_due(session, last, here.settings.tsa_ca_file)
        if shown is not None:
            cosigning.enqueue_due(session, policy, shown)
        incidents.keep(session, parts)


def cosign_checkpoint(here: Runtime) -> None:
    """Each minute: enqueue cosigning of the newest checkpoint, so that monitors find a quorum."""
    policy = here.settings.witness_policy
    # The sequencer asks for a quorum itself, as without one nothing is published.
    if here.settings.log_require_quorum or not cosigning.asked(policy):
        return
    with here.database.across_tenants() as session:
        last = checkpoint_round.chosen(session)
        if last is not None:
            cosigning.enqueue_due(session, policy, last)
