"""A whole verification of one chain: every entry, and every leaf of the log that speaks of it."""

from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.log.publication import Published
from app.core.verification import anchored, chain, published_log
from app.core.verification.anchored import Found, Leaves
from app.core.verification.deadline import Deadline, TakesLonger
from app.core.verification.log_walk import leaves_of
from app.core.verification.published_log import Outside, Succession
from app.core.verification.recent import Start
from app.core.verification.stamps import Stamps
from app.errors import AuditChainBroken, LogDamaged, LogHalted
from app.ledger import leaves
from app.ledger.hash_chain import Head
from app.lib.sealing import MasterKeys
from app.models import Tenant

# What two cores do in a second while others work on them: nobody should wait in vain.
_ENTRIES_A_SECOND = 150_000
_LEAVES_A_SECOND = 400_000


@dataclass
class Seen:
    """What holds a chain: the log as published, and what was found in it."""

    last: Published | None
    stamps: Stamps
    held: Found = field(default_factory=Found)
    successions: list[Succession] = field(default_factory=list)
    start: Start | None = None


def chain_name(session: Session, tenant_id: UUID) -> bytes:
    """Return what a tenant's chain is called in the log."""
    salt = session.execute(select(Tenant.chain_salt).where(Tenant.id == tenant_id)).scalar_one()
    return leaves.chain_name(salt)


class Whole:
    """Verifies one chain in one snapshot."""

    def __init__(
        self, session: Session, master_keys: MasterKeys, outside: Outside, deadline: Deadline
    ) -> None:
        self._session = session
        self._master_keys = master_keys
        self._outside = outside
        self._deadline = deadline

    def check(self, tenant_id: UUID, last: Published | None, end: Head, stamps: Stamps) -> Seen:
        """Hold the chain up to `end` against itself and the log at `last`; return what holds it.

        Raises `AuditChainBroken` with the first bad entry, `LogDamaged`, `TakesLonger`.
        """
        self._check_time(last, end)
        broken = None
        try:
            chain.check(self._session, tenant_id, end, self._deadline)
        except AuditChainBroken as error:
            broken = error
        seen = Seen(last, stamps)
        try:
            if last is not None:
                self._hold(tenant_id, last, seen)
        except (LogHalted, TakesLonger):
            # What is broken in itself is broken whatever the log says.
            if broken is None:
                raise
        if broken is not None:
            seen.held.keep(broken)
        if seen.held.broken is not None:
            raise seen.held.broken
        return seen

    def _check_time(self, last: Published | None, end: Head) -> None:
        size = 0 if last is None else last.checkpoint.size
        if end.seq / _ENTRIES_A_SECOND + size / _LEAVES_A_SECOND > self._deadline.seconds:
            raise TakesLonger

    def _hold(self, tenant_id: UUID, last: Published, seen: Seen) -> None:
        name = chain_name(self._session, tenant_id)
        heads = self._walk(last, name, seen)
        seen.held = heads.by_tenant.get(tenant_id, seen.held)
        size = last.checkpoint.size
        astray = anchored.anchors_astray(
            self._session, heads, size, lambda number: leaves_of(self._session, last, number)
        )
        for _, place in astray:
            seen.held.note(*place)
        for found, before in published_log.older(
            self._session, self._master_keys, last.generation
        ):
            held = 0
            if found is not None:
                held = found.checkpoint.size
                earlier = self._walk(found, name, seen).by_tenant.get(tenant_id)
                if earlier is not None and earlier.broken is not None:
                    seen.held.keep(earlier.broken)
            seen.successions.append(Succession(before, held))

    def _walk(self, last: Published, name: bytes | None, seen: Seen) -> Leaves:
        """Read a log whole, its stamped checkpoints and the head outside among its roots."""
        newest = seen.last is last
        heads = Leaves(self._session, last.generation, newest=newest, chain=name)
        sizes = set(seen.stamps.sizes(last.generation.number))
        outside = self._outside.checkpoint if newest else None
        if outside is not None and outside.origin == last.generation.origin:
            sizes.add(outside.size)
        roots = published_log.walk(self._session, last, heads, sizes, self._deadline)
        if outside is not None and roots.get(outside.size, outside.root) != outside.root:
            raise LogDamaged(f"The leaves give another root than the head outside at {outside.size}.")
        seen.stamps.check(
            self._session, self._master_keys, last.generation, roots, self._deadline
        )
        return heads
