"""Succession: the way on for a database that is not the newest of its log any more.

The old log ends where the world saw it last. The new one has another origin and another key, and
its first leaf is that checkpoint, so whoever kept the old one can follow; every leaf that the
database still has is sequenced again behind it. Its first checkpoint is prepared here and published
as any other, so a command that was killed is finished by the next integration.
"""

import re
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core import signing_keys
from app.core.audit import chain
from app.core.callers import OPERATOR
from app.core.log import generations, guard, publication, tile_rows
from app.core.log.generations import Generation
from app.core.log.keeper import Keeper
from app.core.signing_keys import Purpose
from app.database import cursor, database_now
from app.errors import Conflict, LogRolledBack
from app.ledger import entry_bundles, leaves, merkle, tiles
from app.ledger.checkpoints import Checkpoint
from app.ledger.tiles import ENTRIES, TileId
from app.lib.sealing import MasterKeys
from app.models import LogGeneration, Tenant

_COUNTED = re.compile(r"(.+)/([1-9][0-9]{0,8})")


def succeed(keeper: Keeper, master_keys: MasterKeys, *, force: bool) -> Generation:
    """Begin the log's successor and publish its first checkpoint; return it.

    Raises `Conflict` where the log can go on as it is, unless `force`; `LogHalted` where the head
    cannot be read or moved.
    """
    head = None if keeper.head is None else keeper.head.read()
    with keeper.database.across_tenants() as session:
        generation = generations.lock(session, wait=True)
        if generation is None:
            raise Conflict("The log has not begun, or its successor has just now: look again.")
        if not _begun(session, generation, head):
            old = _last(session, generation, head, force=force)
            generation = _begin(session, master_keys, generation, old, head_kept=head is not None)
    keeper.run()
    return generation


def next_origin(origin: str) -> str:
    """Return what a log's successor is called: `log`, then `log/2`, `log/3` and so on."""
    counted = _COUNTED.fullmatch(origin)
    return f"{origin}/2" if counted is None else f"{counted[1]}/{int(counted[2]) + 1}"


def _begun(session: Session, generation: Generation, head: bytes | None) -> bool:
    """Say whether an earlier command began a successor of this head and was killed then."""
    old = generation.predecessor
    if old is None or publication.newest(session, generation) is not None:
        return False
    return head is None or head in (
        guard.text(old),
        guard.text(publication.stored(session, generation)),
    )


def _last(
    session: Session, generation: Generation, head: bytes | None, *, force: bool
) -> Checkpoint:
    """Return the checkpoint that the world saw last, if there is a reason to end with it."""
    published = publication.newest(session, generation)
    try:
        found = guard.judge(session, generation, head)
    except LogRolledBack:
        assert head is not None  # noqa: S101  # no head is no rollback
        return guard.read(head)
    if not force:
        raise Conflict(
            "The log can go on as it is: the database holds what was published. A successor is for "
            "a database that was restored to an earlier moment (or say --force)."
        )
    if published is None or publication.prepared(session, generation) is not None:
        raise Conflict("The log is at work on a checkpoint: try again in a moment.")
    return published.checkpoint if found is None else found


def _begin(
    session: Session,
    master_keys: MasterKeys,
    before: Generation,
    old: Checkpoint,
    *,
    head_kept: bool,
) -> Generation:
    retired, signer = signing_keys.replace(session, master_keys, Purpose.LOG)
    number, origin, key_id = before.number + 1, _free_origin(session, old), signer.public.id
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
    _first_leaf(session, generation, old)
    _tell_tenants(session, generation, old, retired)
    return generation


def _first_leaf(session: Session, generation: Generation, old: Checkpoint) -> None:
    data = leaves.LogSuccessor(old).data
    leaf_hash = merkle.leaf_hash(data)
    leaf_id: UUID = ids.new(database_now(session))
    cursor(session).execute(
        "INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)"
        " VALUES (%s, %s, %s, %s, 0) ON CONFLICT (leaf_hash)"
        " DO UPDATE SET generation = EXCLUDED.generation, leaf_index = 0",
        (leaf_id, leaf_hash, data, generation.number),
    )
    nothing: dict[TileId, bytes] = {}
    growth = tiles.grow(0, nothing.__getitem__, [leaf_hash])
    bundle = entry_bundles.encode([data])
    tile_rows.write(session, generation, {**growth.changed, TileId(ENTRIES, 0): bundle})
    first = Checkpoint(generation.origin, 1, growth.root)
    publication.prepare(session, generation, first, None)


def _free_origin(session: Session, old: Checkpoint) -> str:
    taken = set(session.scalars(select(LogGeneration.origin)))
    origin = next_origin(old.origin)
    while origin in taken:
        origin = next_origin(origin)
    return origin


def _tell_tenants(
    session: Session, generation: Generation, old: Checkpoint, retired: str | None
) -> None:
    """Every tenant's chain says that its proofs are in another log from now on."""
    details = {
        "origin": generation.origin,
        "key_id": generation.key_id,
        "retired_key_id": retired,
        "predecessor": {"origin": old.origin, "size": old.size, "root": old.root.hex()},
    }
    for tenant_id in session.scalars(select(Tenant.id).order_by(Tenant.id)).all():
        chain.append(
            session,
            tenant_id,
            OPERATOR,
            "log.succeed",
            target=("log", generation.origin),
            details=details,
        )
