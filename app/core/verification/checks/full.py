"""Full verification of one chain: every entry, and every leaf of the log for this chain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.log.publication import Published
from app.core.verification.checks import anchored_heads, log_walk, published_log, stored_chain
from app.core.verification.checks.anchored_heads import Found, Leaves
from app.core.verification.checks.incremental import Start
from app.core.verification.checks.published_log import Outside, Succession
from app.core.verification.checks.stamps import Stamps
from app.core.verification.time_budget import Deadline, TakesLonger
from app.errors import AuditChainBroken, LogDamaged, LogHalted
from app.ledger.hash_chain import Head
from app.lib.crypto.sealing import MasterKeys


@dataclass(frozen=True)
class Seen:
    """Evidence that a chain is compared with: the log as published, and its anchors in it.

    `stamps` is None where none were verified: from the newest anchor on.
    """

    last: Published | None
    stamps: Stamps | None
    held: Found
    successions: list[Succession] = field(default_factory=list)
    start: Start | None = None


def check(
    reading: "LogReading", tenant_id: UUID, name: bytes, last: Published | None, end: Head
) -> tuple[Found, list[Succession]]:
    """Hold a chain up to `end` against itself and the log at `last`, where it is called `name`.

    Raises `AuditChainBroken` with the first bad entry, `LogDamaged`, `TakesLonger`.
    """
    reading.deadline.expect(end.seq, 0 if last is None else last.checkpoint.size)
    held, broken = Found(), None
    successions: list[Succession] = []
    try:
        stored_chain.check(reading.session, tenant_id, end, reading.deadline)
    except AuditChainBroken as error:
        broken = error
    try:
        if last is not None:
            held, successions = reading.of_one(last, tenant_id, name)
    except (LogHalted, TakesLonger):
        # A chain that is broken in itself is reported as that, regardless of the log.
        if broken is None:
            raise
    if broken is not None:
        held.keep(broken)
    if held.broken is not None:
        raise held.broken
    return held, successions


@dataclass(frozen=True)
class LogReading:
    """The log and those before it, read whole in one snapshot.

    `acknowledged` are the chains that may be without a tenant.
    """

    session: Session
    master_keys: MasterKeys
    outside: Outside
    stamps: Stamps
    deadline: Deadline
    acknowledged: frozenset[bytes] = frozenset()

    def of_one(
        self, last: Published, tenant_id: UUID, name: bytes
    ) -> tuple[Found, list[Succession]]:
        """Hold one chain against every head of it that any of the logs took in.

        `last` is the newest log's. Raises `LogDamaged`, `TakesLonger`.
        """
        heads = self._read(last, name, newest=True)
        held = heads.by_tenant.get(tenant_id, Found())
        for _, place in self._astray(last, heads):
            held.note(*place)
        successions = []
        for found, before in published_log.older(self.session, self.master_keys, last.generation):
            successions.append(Succession(before, found.checkpoint.size if found else 0))
            earlier = found and self._read(found, name, newest=False).by_tenant.get(tenant_id)
            if earlier and earlier.broken:
                held.keep(earlier.broken)
        return held, successions

    def of_all(self, last: Published) -> tuple[Leaves, dict[UUID, AuditChainBroken]]:
        """Hold every chain against the logs; return what the newest has, and what is broken.

        The session sees all tenants. Raises `LogDamaged`.
        """
        heads = self._read(last, None, newest=True)
        by_tenant = dict(heads.by_tenant)
        for tenant_id, place in self._astray(last, heads):
            by_tenant.setdefault(tenant_id, Found()).note(*place)
        for found, _ in published_log.older(self.session, self.master_keys, last.generation):
            earlier = found and self._read(found, None, newest=False)
            if earlier:
                heads.unknown = earlier.unknown | heads.unknown
                for tenant_id, held in earlier.by_tenant.items():
                    if held.broken is not None:
                        by_tenant.setdefault(tenant_id, Found()).keep(held.broken)
        broken = {key: held.broken for key, held in by_tenant.items() if held.broken is not None}
        return heads, broken

    def _astray(self, last: Published, heads: Leaves) -> Iterator[tuple[UUID, Sequence[Any]]]:
        def read_bundle(number: int) -> list[bytes]:
            self.deadline.check()
            return log_walk.leaves_of(self.session, last, number)

        return anchored_heads.anchors_astray(self.session, heads, last.checkpoint.size, read_bundle)

    def _read(self, last: Published, name: bytes | None, *, newest: bool) -> Leaves:
        heads = Leaves(
            self.session,
            last.generation,
            newest=newest,
            chain=name,
            acknowledged=self.acknowledged,
        )
        sizes = set(self.stamps.sizes(last.generation.number))
        outside = self.outside.checkpoint if newest else None
        if outside is not None and outside.origin == last.generation.origin:
            sizes.add(outside.size)
        roots = published_log.walk(self.session, last, heads, sizes, self.deadline)
        if outside is not None and roots.get(outside.size, outside.root) != outside.root:
            raise LogDamaged(f"The leaves give another root than the head outside says: {outside}.")
        self.stamps.check(self.session, self.master_keys, last.generation, roots, self.deadline)
        return heads
