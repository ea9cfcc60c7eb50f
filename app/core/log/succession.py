"""Succession: begins a new generation where the database is behind its published log; adoption.

The first leaf of the new log is the last checkpoint of the old one; all leaves that the database
has follow. The first checkpoint is prepared here and published by the next integration, also after
a crash.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core import signing_keys
from app.core.audit import chain
from app.core.log import generations, head_guard, publication, rebuild
from app.core.log.generations import Generation
from app.core.log.sequencer import Sequencer, grow
from app.core.signing_keys import Purpose
from app.database import cursor, database_now
from app.errors import (
    AuditChainBroken,
    Conflict,
    LogDamaged,
    LogGoesOn,
    LogHalted,
    LogHeadLost,
    LogRolledBack,
)
from app.ledger import leaves, merkle
from app.ledger.merkle import EMPTY_ROOT
from app.ledger.notes import Checkpoint
from app.lib.crypto.sealing import MasterKeys
from app.models import LogGeneration


def adopt(sequencer: Sequencer) -> Checkpoint:
    """Have the newest published checkpoint kept as the head; return it.

    Only where no head is: one that contradicts is never written over. Raises `Conflict` where there
    is one, no store, or no log, `LogDamaged` for a checkpoint that the tiles do not have.
    """
    if sequencer.head is None:
        raise Conflict("LOG_HEAD_URL is not set: there is nowhere to keep a head.")
    with sequencer.database.across_tenants() as session:
        last = publication.current(session)
        if last is None:
            raise Conflict(
                "The log has published nothing yet; its first checkpoint is kept by itself."
            )
        head_guard.check_stored(session, last)
    if not sequencer.head.swap(None, head_guard.text(last.checkpoint)):
        raise Conflict("A head is there already, and it is another: see `app.manage log status`.")
    with sequencer.database.across_tenants() as session:
        found = last.generation
        trouble = None if found.trouble == LogHeadLost.slug else found.trouble
        generations.mark(session, found.number, head_kept=True, trouble=trouble)
    return last.checkpoint


@dataclass(frozen=True)
class Successor:
    """A log that has begun behind another; `untold` are the broken chains without its entry."""

    generation: Generation
    untold: Mapping[UUID, AuditChainBroken]


def succeed(sequencer: Sequencer, master_keys: MasterKeys, *, force: bool) -> Successor:
    """Begin the log's successor and publish its first checkpoint; return it.

    Raises `Conflict` where the log can go on as it is or the head is another log's, unless `force`,
    and, with `force` too, where damage can be mended; `LogHalted` where the head cannot be read or
    moved.
    """
    head = None if sequencer.head is None else sequencer.head.read()
    with sequencer.database.across_tenants() as session:
        generation = generations.lock(session, wait=True)
        if generation is None:
            raise Conflict("The log has not begun, or its successor has just now: look again.")
        new = Successor(generation, {})
        if not _begun(session, generation, head):
            old = _last(session, generation, head, force=force)
            new = _begin(session, master_keys, generation, old, head_kept=head is not None)
    sequencer.run()
    return new


def refuse_if_mendable(sequencer: Sequencer) -> None:
    """Raise `Conflict` where the log was damaged and `log rebuild` mends it; reads all of it."""
    head = None if sequencer.head is None else sequencer.head.read()
    with sequencer.database.across_tenants(snapshot=True) as session:
        generation = generations.newest(session)
        if generation is not None:
            outside = None if head is None else head_guard.read(head)
            _refuse_if_mendable(session, generation, outside)


def _begun(session: Session, generation: Generation, head: bytes | None) -> bool:
    """Say whether an earlier command began a successor of this head and was killed then."""
    old = generation.predecessor
    if old is None or publication.newest(session, generation) is not None:
        return False
    return head is None or head in (
        head_guard.text(old),
        head_guard.text(publication.stored(session, generation)),
    )


def _last(
    session: Session, generation: Generation, head: bytes | None, *, force: bool
) -> Checkpoint:
    """Return the checkpoint that was published last, if there is a reason to end with it."""
    published = publication.newest(session, generation)
    outside = None if head is None else head_guard.read(head)
    if not force and outside is not None:
        head_guard.require_own(generation, outside)
    _refuse_if_mendable(session, generation, outside)
    try:
        head_guard.judge(session, generation, head)
        if published is not None:
            head_guard.check_stored(session, published)
    except (LogRolledBack, LogDamaged):
        pass
    else:
        if not force:
            raise LogGoesOn(
                "The log can go on as it is: the database holds what was published. A successor is "
                "for a database that was restored to an earlier moment (or say --force)."
            )
        # The next integration moves an older head on. A candidate may wait for ever.
        is_behind = (
            published is not None
            and outside is not None
            and outside.origin == published.checkpoint.origin
            and outside.size < published.checkpoint.size
        )
        work = publication.prepared(session, generation)
        is_at_work = work is not None and publication.candidate(session, generation) is None
        if published is None or is_behind or is_at_work:
            raise Conflict("The log is at work on a checkpoint: try again in a moment.")
    if outside is not None:
        return outside
    if published is None:
        raise Conflict("Nothing shows what the log published last: there is nothing to go on from.")
    return published.intact().checkpoint


def _refuse_if_mendable(
    session: Session, generation: Generation, outside: Checkpoint | None
) -> None:
    """Raise `Conflict` where the tree that was published can be had from what is stored.

    A log ends once and for all; what was merely damaged goes on. Reads the whole log.
    """
    if outside is not None and outside.origin != generation.origin:
        return
    try:
        report = rebuild.rebuild(session, outside)
    except LogHalted:
        return
    if not report.is_identical:
        raise Conflict(
            "The log was damaged, and its leaves still give the tree that was published: mend it "
            "with `python -m app.manage log rebuild`, and it goes on. It is not ended for that."
        )


def _begin(
    session: Session,
    master_keys: MasterKeys,
    before: Generation,
    old: Checkpoint,
    *,
    head_kept: bool,
) -> Successor:
    retired, signer = signing_keys.replace(session, master_keys, Purpose.LOG)
    taken = set(session.scalars(select(LogGeneration.origin)))
    origin = generations.next_origin(old.origin)
    while origin in taken:
        origin = generations.next_origin(origin)
    number, key_id = before.number + 1, signer.public.id
    row = LogGeneration(
        generation=number,
        origin=origin,
        key_id=key_id,
        predecessor=old.text,
        head_kept=head_kept,
        appointment=generations.appoint(master_keys, number, origin, key_id, old),
    )
    session.add(row)
    session.flush()
    generation = generations.newest(session)
    assert generation is not None  # noqa: S101  # made above
    data = leaves.successor(old)
    leaf_hash = merkle.leaf_hash(data)
    leaf_id: UUID = ids.new(database_now(session))
    cursor(session).execute(
        "INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)"
        " VALUES (%s, %s, %s, %s, 0) ON CONFLICT (leaf_hash)"
        " DO UPDATE SET generation = EXCLUDED.generation, leaf_index = 0",
        (leaf_id, leaf_hash, data, generation.number),
    )
    empty = Checkpoint(generation.origin, 0, EMPTY_ROOT)
    first = grow(session, generation, empty, [(0, leaf_hash, data)])
    publication.prepare(session, generation, first, None)
    # Every tenant's chain says that its proofs are in another log from now on.
    details = {
        "origin": origin,
        "key_id": key_id,
        "retired_key_id": retired,
        "predecessor": {"origin": old.origin, "size": old.size, "root": old.root.hex()},
    }
    target = ("log", origin)
    untold = chain.append_to_all(session, "log.succeed", target=target, details=details)
    return Successor(generation, untold)
