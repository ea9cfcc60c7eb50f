"""Whose record a run of spans becomes: its agent, its principal, and its conversation's session."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.core import agents, sessions
from app.core.agents import NewAgent
from app.core.sessions import NewSession
from app.database import Tx, cursor
from app.evidence.spans import mapping
from app.evidence.spans.mapping import Mapped
from app.evidence.spans.runs import Run, Staged


class Claimed(NamedTuple):
    """A trace's row, locked: its key, its pin, what was assembled of it, and when its spans came.

    `large`: it has too many bytes to wait for the rest.
    """

    pin: UUID
    trace_id: bytes
    pin_agent_id: UUID | None
    pin_principal: str | None
    staged_bytes: int
    assembled: list[bytes]
    record_ids: list[UUID]
    is_incomplete: bool
    at: datetime
    now: datetime


@dataclass
class Plan:
    """What becomes of a claimed trace: its runs, mapped, or why it is dropped."""

    trace: Claimed
    spans: list[Staged]
    runs: list[tuple[Run, Mapped]] = field(default_factory=list)
    record_ids: list[UUID] = field(default_factory=list)
    reason: str | None = None
    is_cut: bool = False

    @property
    def taken(self) -> list[Staged]:
        """The spans that are no longer staged."""
        return self.spans if self.reason else [each for run, _ in self.runs for each in run.spans]


_OF_RECORDS = """
SELECT id, session_id, agent_id, principal FROM records WHERE tenant_id = %s AND id = ANY (%s)
"""


Home = tuple[UUID, UUID, str]
"""A session, its agent and its principal."""


def find(tx: Tx, tenant_id: UUID, plans: Sequence[Plan]) -> dict[tuple[int, int], Home]:
    """Return the session, agent and principal of each run, by its plan's `id` and its place."""
    homes: dict[tuple[int, int], Home] = {}
    firsts = [plan.trace.record_ids[0] for plan in plans if plan.trace.record_ids]
    of_records: dict[UUID, Home] = {}
    if firsts:
        rows = cursor(tx).execute(_OF_RECORDS, (tenant_id, firsts)).fetchall()
        of_records = {record_id: (session, agent, who) for record_id, session, agent, who in rows}
    fresh: list[tuple[tuple[int, int], Plan, Mapped]] = []
    for plan in plans:
        for place, (run, mapped) in enumerate(plan.runs):
            if not run.supplement:
                fresh.append(((id(plan), place), plan, mapped))
    known = agents.get_or_create(
        tx,
        tenant_id,
        [NewAgent(*mapped.agent) for _, plan, mapped in fresh if plan.trace.pin_agent_id is None],
    )
    asking = [
        (
            key,
            plan.trace.pin_agent_id or known[mapped.agent.external_id].id,
            plan.trace.pin_principal or mapped.principal,
            mapped,
        )
        for key, plan, mapped in fresh
    ]
    homes.update(_sessions(tx, tenant_id, asking))
    for plan in plans:
        first = plan.trace.record_ids[:1]
        home = of_records[first[0]] if first else homes.get((id(plan), 0))
        for place, (run, _) in enumerate(plan.runs):
            if run.supplement and home is not None:
                homes[id(plan), place] = home
    return homes


def _sessions(
    tx: Tx, tenant_id: UUID, asking: list[tuple[tuple[int, int], UUID, str, Mapped]]
) -> dict[tuple[int, int], Home]:
    """Return the session of each run: its conversation's, unless that is another's or has ended.

    Another agent's or principal's is `<conversation>#<agent>`, the next of an ended one `…#2`.
    """
    homes: dict[tuple[int, int], Home] = {}
    names = {key: (mapped.conversation, 1) for key, _, _, mapped in asking}
    while asking:
        new = {}
        for key, agent_id, principal, _ in asking:
            base, number = names[key]
            name = base if number == 1 else f"{base}#{number}"
            new.setdefault(name, NewSession(name, agent_id, principal))
        known = sessions.get_or_create(tx, tenant_id, list(new.values()))
        left = []
        for each in asking:
            key, agent_id, principal, mapped = each
            base, number = names[key]
            found = known[base if number == 1 else f"{base}#{number}"]
            foreign = (found.agent_id, found.principal) != (agent_id, principal)
            if not foreign and found.status == "open":
                homes[key] = (found.id, agent_id, principal)
                continue
            if foreign and base == mapped.conversation:
                names[key] = (mapping.external_id(f"{base}#{mapped.agent.external_id}"), 1)
            else:
                names[key] = (base, number + 1)
            left.append(each)
        asking = left
    return homes
