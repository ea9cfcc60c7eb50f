"""Whose record a run of spans becomes: its agent, its principal, and its conversation's session."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app import ids
from app.core import agents, sessions
from app.core.agents import NewAgent
from app.core.sessions import NewSession
from app.database import Tx, cursor
from app.evidence.spans import mapping
from app.evidence.spans.mapping import Mapped
from app.evidence.spans.runs import Run, Staged


class Claimed(NamedTuple):
    """A trace's row, locked: its key and pin, what was assembled of it, when its spans came."""

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
    """What becomes of a claimed trace: its runs, mapped, with their homes; or why it is dropped."""

    trace: Claimed
    spans: list[Staged]
    runs: list[tuple[Run, Mapped]] = field(default_factory=list)
    homes: dict[int, "Home"] = field(default_factory=dict)
    record_ids: list[UUID] = field(default_factory=list)
    reason: str | None = None
    is_cut: bool = False

    @property
    def taken(self) -> list[Staged]:
        """The spans that are no longer staged."""
        return self.spans if self.reason else [each for run, _ in self.runs for each in run.spans]


_OF_RECORDS = """
SELECT r.id, r.session_id, r.agent_id, r.principal, s.external_id, s.status
  FROM records AS r JOIN sessions AS s ON s.tenant_id = r.tenant_id AND s.id = r.session_id
 WHERE r.tenant_id = %s AND r.id = ANY (%s)
"""
# A conversation may have had thousands of sessions that ended.
_AT_ONCE = 1_000
_NEXT = """
SELECT coalesce(min(n), %(last)s + 1) FROM generate_series(%(first)s::bigint, %(last)s) AS n
  LEFT JOIN LATERAL (
       SELECT id, agent_id, principal, status FROM sessions
        WHERE tenant_id = %(tenant)s AND external_id = %(conversation)s || '#' || n OFFSET 0
       ) AS s ON true
 WHERE s.id IS NULL
    OR CASE WHEN s.agent_id = %(agent)s AND s.principal = %(principal)s
            THEN s.status = 'open' ELSE %(has_others)s END
"""
_NUMBERED = re.compile(r"(.+)#([1-9][0-9]{0,8})", re.DOTALL)

Home = tuple[UUID, UUID, str]
"""A session, its agent and its principal."""


@dataclass
class _Asking:
    """A run that needs a session: whose, of which conversation, and its number of that name."""

    plan: Plan
    place: int
    agent_id: UUID
    principal: str
    conversation: str
    number: int = 1
    others: str | None = None

    @property
    def name(self) -> str:
        """The external id to ask for next."""
        return self.conversation if self.number == 1 else f"{self.conversation}#{self.number}"


def find(tx: Tx, tenant_id: UUID, plans: Sequence[Plan]) -> None:
    """Find the home of each run: session, agent and principal.

    A conversation's session belongs to one agent and principal: another's is
    `<conversation>#<agent>`. One that ended takes no more, and the next is `<conversation>#2`.
    Supplements keep those of their trace's first record.
    """
    fresh = [
        (plan, place, mapped)
        for plan in plans
        for place, (run, mapped) in enumerate(plan.runs)
        if not run.supplement
    ]
    unpinned = [mapped for plan, _, mapped in fresh if plan.trace.pin_agent_id is None]
    known = agents.get_or_create(tx, tenant_id, [NewAgent(*each.agent) for each in unpinned])
    asking = [
        _Asking(
            plan,
            place,
            plan.trace.pin_agent_id or known[mapped.agent.external_id].id,
            plan.trace.pin_principal or mapped.principal,
            mapped.conversation,
            others=mapping.external_id(f"{mapped.conversation}#{mapped.agent.external_id}"),
        )
        for plan, place, mapped in fresh
    ]
    supplements = [
        (plan, [place for place, (run, _) in enumerate(plan.runs) if run.supplement])
        for plan in plans
    ]
    older = {
        plan.trace.record_ids[0]: (plan, places[0])
        for plan, places in supplements
        if plan.trace.record_ids and places
    }
    asking += _of_first_records(tx, tenant_id, older)
    _sessions(tx, tenant_id, asking)
    for plan, places in supplements:
        first = places[0] if plan.trace.record_ids and places else 0
        for place in places:
            plan.homes[place] = plan.homes[first]


def _of_first_records(
    tx: Tx, tenant_id: UUID, older: Mapping[UUID, tuple[Plan, int]]
) -> Iterator[_Asking]:
    """Find the homes of first supplements to older records; yield those whose session ended."""
    rows = cursor(tx).execute(_OF_RECORDS, (tenant_id, list(older))).fetchall() if older else ()
    for record_id, session_id, agent_id, principal, external_id, status in rows:
        plan, place = older[record_id]
        if status == "open":
            plan.homes[place] = (session_id, agent_id, principal)
            continue
        name = external_id or ids.text("ses", session_id)
        numbered = _NUMBERED.fullmatch(name)
        base, number = (numbered[1], int(numbered[2])) if numbered else (name, 1)
        yield _Asking(plan, place, agent_id, principal, base, number + 1)


def _sessions(tx: Tx, tenant_id: UUID, asking: Sequence[_Asking]) -> None:
    while asking:
        new = {each.name: NewSession(each.name, each.agent_id, each.principal) for each in asking}
        known = sessions.get_or_create(tx, tenant_id, list(new.values()))
        left = []
        for each in asking:
            found = known[each.name]
            is_theirs = (found.agent_id, found.principal) == (each.agent_id, each.principal)
            if is_theirs and found.status == "open":
                each.plan.homes[each.place] = (found.id, each.agent_id, each.principal)
                continue
            if not is_theirs and each.others is not None:
                each.conversation, each.number, each.others = each.others, 1, None
            else:
                each.number = _next(tx, tenant_id, each)
            left.append(each)
        asking = left


def _next(tx: Tx, tenant_id: UUID, asking: _Asking) -> int:
    """Return the next number of a conversation to ask for, past sessions that it cannot have."""
    values = {
        "tenant": tenant_id,
        "conversation": asking.conversation,
        "first": asking.number + 1,
        "last": asking.number + _AT_ONCE,
        "agent": asking.agent_id,
        "principal": asking.principal,
        "has_others": asking.others is not None,
    }
    ((number,),) = cursor(tx).execute(_NEXT, values).fetchall()
    return int(number)
