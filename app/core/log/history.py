"""The watch over this database's history: marks kept outside, and epochs for what was lost.

A mark is a row; once committed it is put beside the log's head. So what lies outside is here too,
unless the database lost its end. Then an epoch begins, every tenant is told, and no mark replaces
that of what may be the newer database before an operator accepts the loss.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from psycopg.rows import class_row, scalar_row
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import epochs
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.delivery import events
from app.core.delivery.event_types import EventType
from app.core.delivery.events import NewEvent
from app.core.epochs import Epoch
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Step
from app.core.log.head_store import HeadStore
from app.core.log.sequencer import Sequencer
from app.database import Database, cursor, database_now
from app.errors import HeadOfAnother, LogHalted, LogHeadLost, LogRolledBack
from app.lib import canonical_json
from app.models import NO_TENANT, Job, Tenant

_log = structlog.get_logger(__name__)

EVERY = timedelta(seconds=5)
"""The least age of a mark before the next one is made, by the tick `integrate`.

What is lost of the time since the newest one is not found.
"""
KIND = "tell_rollback"
_TENANTS_AT_ONCE = 100


@dataclass(frozen=True)
class Mark:
    """A moment that was committed; `n` counts them."""

    n: int
    id: UUID
    at: datetime

    @property
    def text(self) -> bytes:
        """The mark as it lies outside."""
        return f"record-service history\n{self.n}\n{self.id.hex}\n{rfc3339(self.at)}\n".encode()

    @classmethod
    def parse(cls, text: bytes) -> "Mark":
        """Read what lies outside. Raises `LogHeadLost` for what is no mark."""
        try:
            _, n, mark, at, _ = text.decode().split("\n")
            return cls(int(n), UUID(mark), datetime.fromisoformat(at))
        except ValueError:
            raise LogHeadLost(
                "What is beside the log's head at LOG_HEAD_URL, in `.history`, is no mark: put "
                "back what was there; if that is lost, remove it, and the next one takes its place."
            ) from None


_NEWEST = "SELECT n, id, at FROM history_marks ORDER BY n DESC LIMIT 1"
# Of one that was outside for over a day nothing is known any more.
_LACKS = """
SELECT NOT EXISTS (SELECT FROM history_marks WHERE id = %(id)s)
       AND NOT EXISTS (SELECT FROM history_marks HAVING min(n) > %(n)s)
"""
# What the sweep has not numbered yet, or what is not committed, comes after `common_until`.
_MARK = """
INSERT INTO history_marks (common_until)
SELECT least(numbered_through, settled_before()) FROM sweeps RETURNING n, id, at
"""
_PRUNE = "DELETE FROM history_marks WHERE at < %s - interval '1 day'"
_ACCEPT = "UPDATE epochs SET accepted_at = clock_timestamp() WHERE accepted_at IS NULL"
# The newest database is back.
_ACCEPT_WHOLE = f"""
{_ACCEPT} AND NOT EXISTS (
    SELECT FROM log_generations WHERE trouble = '{LogRolledBack.slug}'
       AND generation = (SELECT max(generation) FROM log_generations))
"""
_LOCK = "SELECT FROM epochs ORDER BY number DESC LIMIT 1 FOR UPDATE"
_BEGIN = """
INSERT INTO epochs (common_until, lost)
VALUES (coalesce((SELECT common_until FROM history_marks ORDER BY n DESC LIMIT 1), 'epoch'), %s)
"""


class History:
    """The history of one database; as many may watch it at once as like to."""

    def __init__(self, database: Database, store: HeadStore | None) -> None:
        """`store` keeps the mark outside; without one nothing is found."""
        self._database = database
        self._store = store
        self._due = 0.0

    def tick(self) -> None:
        """Watch, at most every five seconds."""
        if self._store is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY.total_seconds()
            self.watch(self._store)

    def watch(self, store: HeadStore) -> None:
        """Hold the database against the mark outside, then make the next one if it is time.

        Begins an epoch where the database lacks that mark. Raises `LogHeadUnavailable`,
        `LogHeadLost`.
        """
        kept = store.read()
        outside = None if kept is None else Mark.parse(kept)
        with self._database.across_tenants() as session:
            if outside is not None:
                named = {"id": outside.id, "n": outside.n}
                if cursor(session, scalar_row).execute(_LACKS, named).fetchone():
                    _begin(session, {"until": rfc3339(outside.at)})
                    return
            cursor(session).execute(_ACCEPT_WHOLE.encode())
            if not epochs.present(session).accepted:
                return
            if outside is not None:
                cursor(session).execute(_PRUNE, (outside.at,))
                # One of the future is from before the clock was set back.
                if timedelta(0) <= database_now(session) - outside.at < EVERY:
                    return
            new = _mark(session)
        # The commit comes first: what lies outside is here. Others may have been quicker.
        store.swap(kept, new.text)

    def lose_leaves(self, detail: str) -> None:
        """Begin an epoch because the log's head says that the database lost leaves."""
        with self._database.across_tenants() as session:
            _begin(session, {"log": detail})

    def unaccepted(self) -> Epoch | None:
        """Watch, and return the present epoch while its loss is not accepted."""
        if self._store is not None:
            self.watch(self._store)
        with self._database.across_tenants() as session:
            now = epochs.present(session)
        return None if now.accepted else now

    def accept(self) -> Epoch | None:
        """Let the history of now count, whatever was lost; return its epoch, None if it did.

        A mark that others keep outside is written over. Raises as `watch` does.
        """
        now = self.unaccepted()
        if now is None:
            return None
        with self._database.across_tenants() as session:
            new = _mark(session)
        while self._store is not None and not self._store.swap(self._store.read(), new.text):
            continue
        with self._database.across_tenants() as session:
            cursor(session).execute(_ACCEPT)
        return now


def look_again(history: History, log: Sequencer) -> None:
    """Begin an epoch if the log is behind its head, and was not only about to have a successor."""
    try:
        log.check()
    except LogRolledBack as error:
        if not isinstance(error, HeadOfAnother):
            history.lose_leaves(error.detail)
    except LogHalted as error:
        _log.warning("log_halted", problem=error.slug, detail=error.detail)


def _mark(session: Session) -> Mark:
    made = cursor(session, class_row(Mark)).execute(_MARK).fetchone()
    if made is None:
        raise LookupError("the table sweeps has lost its row: restore it from a backup")
    return made


def _begin(session: Session, lost: Mapping[str, str]) -> None:
    """Begin an epoch, and have every tenant told; nothing while the last one is not accepted."""
    cursor(session).execute(_LOCK)
    if not epochs.present(session).accepted:
        return
    newest = cursor(session, class_row(Mark)).execute(_NEWEST).fetchone()
    known = {"since": None if newest is None else rfc3339(newest.at), **lost}
    cursor(session).execute(_BEGIN, (canonical_json.dumps(known).decode(),))
    now = epochs.present(session)
    _log.critical("history_rolled_back", epoch=now.name, **known)
    job_queue.enqueue(session, None, kind=KIND, args={"epoch": now.name}, dedupe_key=now.name)


def said(epoch: Epoch) -> str:
    """Say what is known of what an epoch has lost, for people."""
    lost = epoch.lost or {}
    before = lost.get("since") or "an unknown moment"
    if "until" in lost:
        return (
            f"what was accepted after {before} is lost in part or whole: the mark of "
            f"{lost['until']} is outside, and not in the database"
        )
    return f"what was accepted after {before} is lost in part or whole: {lost.get('log')}"


def represent(epoch: Epoch) -> dict[str, Any]:
    """Return `data` of the event and details of the audit entry."""
    lost = epoch.lost or {}
    return {
        "epoch": epoch.name,
        "began_at": rfc3339(epoch.began_at),
        "lost_since": lost.get("since"),
        "lost_until": lost.get("until"),
        "detail": f"The database lost the end of its history: {said(epoch)}. Sequence numbers that "
        "you have may be of other events now: ask each feed with the epoch or position you have.",
    }


def tell(session: Session, _: UUID, job: Job) -> Step:
    """Tell the next tenants of the present epoch: an audit entry, and an event to each webhook."""
    now = epochs.present(session)
    done: dict[str, Any] = {"after": str(NO_TENANT), "told": 0}
    if job.cursor:
        done = json.loads(job.cursor)
    wanted = select(Tenant.id).where(Tenant.id > UUID(done["after"])).order_by(Tenant.id)
    tenants = list(session.scalars(wanted.limit(_TENANTS_AT_ONCE)))
    if job_rows.args_of(job)["epoch"] != now.name:
        tenants = []
    data, moment = represent(now), database_now(session)
    for tenant_id in tenants:
        events.emit(
            session, tenant_id, [NewEvent(EventType.HISTORY_ROLLED_BACK.value, data, moment)]
        )
        chain.append_if_whole(
            session,
            tenant_id,
            "history.roll_back",
            target=("epoch", now.name),
            details=data,
            actor=SYSTEM,
        )
    told = done["told"] + len(tenants)
    if len(tenants) < _TENANTS_AT_ONCE:
        return Step(None, {"told": told})
    return Step(json.dumps({"after": str(tenants[-1]), "told": told}), {"told": told})
