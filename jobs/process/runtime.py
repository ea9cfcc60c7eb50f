"""Services shared by the threads of one worker process.

Opened after the fork and before the first message (`Lifetime` in `middleware.py`).

"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from app import counters
from app.core.anchoring import monitor
from app.core.blobs import reading, store
from app.core.blobs.store import BlobStore
from app.core.health import readiness
from app.core.log import head_store
from app.core.log.history import History
from app.core.log.sequencer import Sequencer
from app.core.master_keys import key_registry
from app.core.rules.evaluators import Evaluators
from app.core.traces.assembly import Assembler
from app.core.verification.published_log import Trust
from app.core.verification.verifier import Verifier
from app.database import Database
from app.lib.mail.mailer import Mailer, NoServer, Outbox
from app.lib.mail.smtp import Smtp
from app.lib.metric_registry import Tally
from app.lib.outbound.addresses import EVERYWHERE
from app.lib.outbound.client import Outbound
from app.lib.repeater import Repeater
from app.queue import Bell
from app.settings import Settings
from jobs.process.bulkhead import Bulkhead
from jobs.process.flusher import Flusher

_FLUSH_AT_STOP_SECONDS = 5.0
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Runtime:
    """The services that actors use; shared by the process's threads."""

    settings: Settings
    database: Database
    bell: Bell
    outbound: Outbound
    # For URLs configured by the operator: timestamp authority and witnesses.
    authorities: Outbound
    flusher: Flusher
    bulkhead: Bulkhead
    log: Sequencer
    history: History
    evaluators: Evaluators
    assembler: Assembler
    mailer: Mailer
    tally: Tally
    counters: Repeater
    key_heartbeat: Repeater
    process_report: Repeater

    @classmethod
    def open(cls, settings: Settings, threads: int, tally: Tally | None = None) -> "Runtime":
        """Open the services of a worker with `threads` threads; `tally` may have counts already."""
        tally = tally or Tally()
        bell = Bell(settings.redis_url, tally)
        database = Database.of(settings, "worker", bell, tally)
        outbound = Outbound(
            settings.webhook_allowed_networks,
            nat64_prefixes=settings.webhook_nat64_prefixes,
            authorities=settings.webhook_ca_file,
        )
        head, gate = head_store.opened(settings.log_head_url), monitor.gate(settings)
        here = cls(
            settings=settings,
            database=database,
            bell=bell,
            outbound=outbound,
            authorities=Outbound(EVERYWHERE),
            flusher=Flusher(database, bell, settings, tally),
            bulkhead=Bulkhead(threads),
            log=Sequencer(database, settings.master_keys, settings.log_origin, head, gate),
            history=History(database, head_store.beside(settings.log_head_url)),
            evaluators=Evaluators(),
            assembler=Assembler(database, settings, tally),
            mailer=mailer_of(settings),
            tally=tally,
            counters=counters.writer(database, tally),
            key_heartbeat=key_registry.heartbeat(database, settings.master_keys),
            process_report=readiness.process_report(database, bell, "worker"),
        )
        here.flusher.start()
        for each in (here.counters, here.key_heartbeat, here.process_report):
            each.begin()
        return here

    def fetching(self, work: Callable[[], _Result]) -> _Result:
        """Do some work with transactions of its own, once what it reads in them is fetched."""
        return reading.fetching(self.blobs, work)

    @property
    def blobs(self) -> BlobStore | None:
        """The object store, if there is one."""
        return store.of(self.settings.blob_url)

    @property
    def verifier(self) -> Verifier:
        """The verifier of audit chains."""
        trust = Trust(self.settings.tsa_ca_file, self.settings.witness_policy)
        return Verifier(self.database, self.settings.master_keys, self.log.head, trust)

    def close(self) -> None:
        """Write the remaining outcomes and close all services."""
        self.evaluators.close()
        self.flusher.stop(_FLUSH_AT_STOP_SECONDS)
        self.counters.close(counters.LAST_SECONDS)
        self.key_heartbeat.close(key_registry.LAST_SECONDS)
        self.process_report.close(readiness.LAST_SECONDS)
        self.outbound.close()
        self.authorities.close()
        self.database.close()
        self.bell.close()


def mailer_of(settings: Settings) -> Mailer:
    """Return the mailer of digests: SMTP, files in the data folder, or none."""
    if settings.smtp_url is not None:
        return Smtp(settings.smtp_url, settings.mail_from.rpartition("@")[2])
    return NoServer() if settings.mail_folder is None else Outbox(settings.mail_folder)


class _Process:
    runtime: Runtime | None = None


def start(settings: Settings, threads: int, tally: Tally) -> None:
    """Open this process's runtime."""
    _Process.runtime = Runtime.open(settings, threads, tally)


def runtime() -> Runtime:
    """Return this process's runtime. Raises RuntimeError before `start`."""
    if _Process.runtime is None:
        raise RuntimeError("no worker runs in this process")
    return _Process.runtime


def stop() -> None:
    """Close this process's runtime, if there is one."""
    if _Process.runtime is not None:
        _Process.runtime.close()
        _Process.runtime = None
