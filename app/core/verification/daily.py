"""The job `verify_audit`: one chain if it is long, all of them daily, the log walked once for all.

The log names the chains. One that no tenant has was deleted with its tenant, or renamed. Sealed
notes say when the last good run began, and how far the log was walked: the owner of the database
can end no run that verified nothing. A killed run begins anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.anchoring.heads import SET_RIGHT
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, Failed, Step
from app.core.log.publication import Published
from app.core.log.tree_walk import TreeWalk
from app.core.verification import alerts, published_log
from app.core.verification.anchored_heads import HeadComparison
from app.core.verification.published_log import Outside, Stamps
from app.core.verification.verifier import Asked, Verifier
from app.database import Database, cursor, database_now
from app.errors import (
    AuditChainBroken,
    Busy,
    LogDamaged,
    LogHalted,
    LogHeadUnavailable,
    Unavailable,
)
from app.ledger import leaves
from app.ledger.hash_chain import Head
from app.ledger.tiles import WIDTH
from app.lib.crypto.sealing import MasterKeys
from app.models import NO_TENANT, Job, Tenant

_log = structlog.get_logger(__name__)

# Leaves and tenants that are read by one short transaction.
_LEAVES_AT_ONCE = 64 * WIDTH
_TENANTS_AT_ONCE = 500

FULL_EVERY = timedelta(days=7)
"""What the tree cannot prove (a chain that was cut, or lost its tenant) is found within so long."""
WALKED = "walked_log"

# A run that was missed, or came to nothing, is made up for from then on, once an hour.
MISSED = timedelta(hours=25)
AGAIN = timedelta(hours=1)
# Older than this, an operator is alerted.
OVERDUE = timedelta(hours=26)
# Other than the moment that it names, a clock may be set back.
_SLACK = timedelta(minutes=1)

KIND = "verify_audit"
KEY = "all"
_FIRST_TENANT = "SELECT id FROM tenants ORDER BY id LIMIT 1"


@dataclass(frozen=True)
class _Walked:
    """How far each log is walked, by origin, and since when all of it was.

    What was found good is not walked again: the signed root at the end proves the tree before it.
    All is walked each week, while a break is open, and on command (`forget_walk`).
    """

    before: Mapping[str, Any] | None
    logs: Mapping[str, int]
    full: str

    @classmethod
    def read(cls, session: Session, master_keys: MasterKeys, now: datetime) -> "_Walked":
        """Read from the note what is not to be walked again."""
        note = alerts.read_note(session, master_keys, WALKED)
        # The owner may put back any sealed note; one of the future is of a wrong clock.
        age = timedelta(-1) if note is None else now - datetime.fromisoformat(note["full"])
        if timedelta(0) <= age < FULL_EVERY and not alerts.count_open(session):
            return cls(note, note["logs"], note["full"])
        return cls(note, {}, rfc3339(now))

    def note(self, session: Session, master_keys: MasterKeys, logs: list[Published] | None) -> None:
        """Keep how far these are walked now; None has all walked, as an operator's command does."""
        sizes = {each.generation.origin: each.checkpoint.size for each in logs or ()}
        new = None if logs is None else {"logs": sizes, "full": self.full}
        if new is None or alerts.read_note(session, master_keys, WALKED) == self.before:
            alerts.write_note(session, master_keys, WALKED, new)


def forget_walk(session: Session, master_keys: MasterKeys) -> None:
    """Have the next run walk everything, from the first leaf."""
    alerts.write_note(session, master_keys, WALKED, None)


def run(verifier: Verifier) -> dict[str, Any] | LogHeadUnavailable:
    """Verify everything; return what was found."""
    with verifier.database.across_tenants() as session:
        began = database_now(session)
        walked = _Walked.read(session, verifier.master_keys, began)
    progress: dict[str, Any] = {"began": rfc3339(began)}
    last: Published | None = None
    broken: dict[UUID, AuditChainBroken] = {}
    try:
        last, found, broken = _walk_log(verifier, walked, began)
        progress |= {"log": "intact", **found}
    except LogHeadUnavailable as error:
        return error
    except LogHalted as error:
        alerts.report_log(verifier.database, error)
        with verifier.database.across_tenants() as session:
            forget_walk(session, verifier.master_keys)
        progress["log"] = error.slug
    # Neither the log nor a chain has a break since the run began; and a chain without a tenant may
    # be any one's, from before its name was changed.
    heals = progress["log"] == "intact" and not progress["unknown_chains"]
    return progress | _verify_chains(verifier, began if heals else None, last, broken)


def _end(
    session: Session, master_keys: MasterKeys, found: dict[str, Any] | LogHeadUnavailable
) -> Step | Failed:
    """End a run; if every chain was verified, seal since when: since it began."""
    if isinstance(found, LogHeadUnavailable):
        return Failed(found.detail)
    if found["log"] == "intact" and not found["failed"]:
        alerts.write_note(session, master_keys, KIND, {"since": found["began"]})
    return Step(None, found)


def _walk_log(
    verifier: Verifier, walked: _Walked, began: datetime
) -> tuple[Published | None, dict[str, Any], dict[UUID, AuditChainBroken]]:
    """Walk the log and those before it; return what was read, and which chains it contradicts.

    Chains without a tenant are reported here. Raises `LogHalted`.
    """
    database, keys = verifier.database, verifier.master_keys

    def begin(outside: Outside) -> tuple[list[Published], frozenset[bytes]]:
        with database.across_tenants(snapshot=True) as session:
            logs = published_log.read_logs(session, keys, outside).published
            Stamps(verifier.trust).check(session, keys, logs, full=False)
            return logs, alerts.acknowledged(session, keys)

    logs, acknowledged = verifier.behind_head(begin)
    heads = [
        HeadComparison(log.generation, newest=log is logs[0], acknowledged=acknowledged)
        for log in logs
    ]
    leaves_read = 0
    for log, compared in zip(logs, heads, strict=True):
        leaves_read += _walk(database, log, compared, walked.logs.get(log.generation.origin, 0))
    unknown = {chain: place for each in reversed(heads) for chain, place in each.unknown.items()}
    broken: dict[UUID, AuditChainBroken] = {}
    for compared in heads:
        for tenant_id, found in compared.by_tenant.items():
            if found.broken is not None:
                broken.setdefault(tenant_id, found.broken)
    with database.across_tenants() as session:
        for chain, (index, head) in unknown.items():
            alerts.report_unknown(session, chain, head.seq, index)
        alerts.heal(session, NO_TENANT, began)
        alerts.keep_found(session, keys, unknown, began)
        walked.note(session, keys, None if broken or unknown else logs)
    if heads and heads[0].unexpected is not None:
        _log.critical("log_leaf_unexpected", leaf=heads[0].unexpected)
    counts = {
        "leaves": logs[0].checkpoint.size if logs else 0,
        "walked": leaves_read,
        "heads": heads[0].matched if heads else 0,
        "unknown_chains": len(unknown),
    }
    return logs[0] if logs else None, counts, broken


def _walk(database: Database, last: Published, heads: HeadComparison, known: int) -> int:
    """Read the leaves of a log behind those `known`, compare tiles with them, heads with chains.

    Returns how many they were. What was published never changes, so each part has a snapshot of its
    own. Raises `LogDamaged`.
    """
    generation, size = last.generation, last.checkpoint.size
    before, walk = generation.predecessor, TreeWalk(generation, size)
    # From a tile's first leaf on, and one there is.
    begin = min(known, size - 1) // WIDTH * WIDTH if 0 < known <= size else 0
    if begin:
        with database.across_tenants(snapshot=True) as session:
            walk.begin_at(session, begin, compare=True)
    for end in range(begin + _LEAVES_AT_ONCE, size + _LEAVES_AT_ONCE, _LEAVES_AT_ONCE):
        with database.across_tenants(snapshot=True) as session:
            cursor(session).execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
            for first, bundle, data in walk.read(session, min(end, size)):
                if first == 0 and before and data[0] != leaves.successor(before):
                    raise LogDamaged(
                        f"The first leaf of {generation.origin} is not its predecessor."
                    )
                heads.add(first, bundle, data)
            heads.settle(session)
    walk.require(last)
    return size - begin


def _verify_chains(
    verifier: Verifier,
    heals_before: datetime | None,
    last: Published | None,
    broken: Mapping[UUID, AuditChainBroken],
) -> dict[str, int]:
    """Recompute every chain; return how many there are, of how many entries, and what failed."""
    counts = {"tenants": 0, "entries": 0, "broken": 0, "failed": 0}
    after = UUID(int=0)
    while True:
        wanted = select(Tenant.id).where(Tenant.id > after).order_by(Tenant.id)
        with verifier.database.across_tenants() as session:
            tenants = list(session.scalars(wanted.limit(_TENANTS_AT_ONCE)))
            cursor(session).execute(SET_RIGHT, (tenants,))
        for tenant_id in tenants:
            counts["tenants"] += 1
            try:
                counts["entries"] += verifier.check_chain(tenant_id, last, broken.get(tenant_id))
            except AuditChainBroken:
                counts["broken"] += 1
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001  # one tenant's fault hides no other's break
                tenant, kind = ids.text("ten", tenant_id), type(error).__name__
                _log.critical("audit_chain_not_verified", tenant_id=tenant, error=kind)
                counts["failed"] += 1
            else:
                if heals_before is not None:
                    with verifier.database.across_tenants() as session:
                        alerts.heal(session, tenant_id, heals_before)
        if len(tenants) < _TENANTS_AT_ONCE:
            return counts
        after = tenants[-1]


def verified_at(session: Session, master_keys: MasterKeys) -> datetime | None:
    """Return when the last run that verified every chain began; None where none is known."""
    note = alerts.read_note(session, master_keys, KIND)
    at = None if note is None else datetime.fromisoformat(note["since"])
    return at if at is not None and at <= database_now(session) + _SLACK else None


def unverified_since(session: Session, master_keys: MasterKeys) -> datetime | None:
    """Return the same in a session that sees all tenants, or else when the first tenant was made.

    None where there is no tenant.
    """
    at = verified_at(session, master_keys)
    if at is not None:
        return at
    row = cursor(session).execute(_FIRST_TENANT).fetchone()
    return None if row is None else ids.made_at(row[0])


def watch(session: Session, master_keys: MasterKeys) -> bool:
    """Say whether a run is to be made up for; log an error when that does not help."""
    since = unverified_since(session, master_keys)
    now = database_now(session)
    if since is None or now - since < MISSED:
        return False
    if now - since > OVERDUE:
        _log.error("audit_not_verified", since=since.isoformat())
    last = job_queue.last_of(session, kind=KIND, dedupe_key=KEY)
    at = None if last is None else last.finished_at
    return at is None or now - at >= AGAIN


MOST_ENTRIES = 200_000
"""A longer chain is verified by a job: some seconds on one of two cores with other work."""

_KEY = "chain"
_TO_READ = """
SELECT h.seq - coalesce((SELECT max(a.seq) FROM audit_anchors AS a
                          WHERE a.tenant_id = h.tenant_id AND %(since_anchor)s), 0)
  FROM audit_heads AS h WHERE h.tenant_id = %(tenant)s
"""


def asked(args: Mapping[str, Any]) -> Asked:
    """Read the options from the arguments of a request or a job."""
    kept = Head(args["seq"], args["hash"]) if "seq" in args else None
    return Asked(
        kept,
        args.get("chain"),
        since_anchor=args.get("since") == "anchor",
        full=args.get("full") == "1",
    )


def is_long(session: Session, tenant_id: UUID, options: Asked) -> bool:
    """Say whether a verification takes too long for a request."""
    values = {"tenant": tenant_id, "since_anchor": options.since_anchor}
    row = cursor(session).execute(_TO_READ, values).fetchone()
    return row is not None and row[0] > MOST_ENTRIES


def enqueue(session: Session, tenant_id: UUID, args: Mapping[str, Any]) -> Job:
    """Enqueue a verification, as a request asks for it; equal ones share a job.

    Raises `Busy` while another question about this chain is open.
    """
    wanted = dict(args)
    job = job_queue.enqueue(session, tenant_id, kind=KIND, args=wanted, dedupe_key=_KEY)
    if job_rows.args_of(job) != wanted:
        raise Busy("Another verification of this chain is not done yet; try again when it is.")
    return job


def enqueue_daily(session: Session) -> Job:
    """Have every chain verified, in a session that sees all tenants."""
    return job_queue.recur(session, kind=KIND, dedupe_key=KEY, args={})


def job_step(verifier: Verifier, _session: Session, tenant_id: UUID, job: Job) -> Errand[Any]:
    """Verify a tenant's chain, or all of them; a report is the job's progress."""
    if tenant_id == NO_TENANT:
        keys = verifier.master_keys
        return Errand(lambda: run(verifier), lambda then, found: _end(then, keys, found))
    options = asked(job_rows.args_of(job))

    def verify() -> Step | Failed:
        try:
            return Step(None, verifier.verify(tenant_id, options))
        except (AuditChainBroken, LogHalted) as error:
            # A second try would find the same; only a store that did not answer may do so then.
            text = f"{error.slug}: {alerts.readable(error.detail)}"
            return Failed(text, for_good=not isinstance(error, LogHeadUnavailable))

    return Errand(verify, lambda _, ended: ended)
