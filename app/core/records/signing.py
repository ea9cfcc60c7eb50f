"""The signature of new records: what it needs from the database, and how it is made.

Signing takes time, so no statement runs meanwhile. What it needs is kept for some seconds;
`add_records` (app/sql) refuses what was signed by what is no longer so.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from app import ids
from app.clock import rfc3339
from app.core import signing_keys
from app.core.callers import Caller
from app.core.signing_keys import Purpose
from app.database import Database, Tx, cursor
from app.errors import NotFound
from app.evidence import bundle, gen_ai
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.signing import SigningKey
from app.schemas import fields

# After so many seconds without a record the key and the time are read again.
_KEPT_SECONDS = 5.0
# Most sessions known; full, the cache is cleared, which bounds its memory.
_MOST_KNOWN = 10_000
_MICROSECOND = timedelta(microseconds=1)

NO_SESSION = "There is no session with this id."

_NOW = "SELECT clock_timestamp()"
_ACTORS = """
SELECT s.id, s.agent_id, s.principal, a.updated_at, s.external_id, a.name, a.external_id, a.version
  FROM sessions AS s JOIN agents AS a ON a.tenant_id = s.tenant_id AND a.id = s.agent_id
 WHERE s.tenant_id = %s AND s.id = ANY (%b)
"""


@dataclass(frozen=True)
class NewRecord:
    """A record as its author sends it: `content` is any JSON, steps are `bundle.Step`s.

    A label `trace_id` that is the id of a trace makes the record one of that trace. `agent_version`
    is what a span says of its agent; by default the agent's own.
    """

    session_id: UUID
    kind: str
    title: str
    content: Any
    occurred_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()
    approvals: Sequence[bundle.Approval] = ()
    agent_version: str | None = None


class Actors(NamedTuple):
    """A session, its principal, and its agent as it was named at `as_of`."""

    agent_id: UUID
    principal: str
    as_of: datetime
    agent: bundle.Agent
    session: bundle.Session


class _Known(NamedTuple):
    """The key that signs, and the database's time when `time.monotonic` was `read_at`."""

    key: SigningKey
    moment: datetime
    read_at: float

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self.read_at < _KEPT_SECONDS

    @property
    def now(self) -> datetime:
        """The database's time; a moment late rather than early."""
        return self.moment + timedelta(seconds=time.monotonic() - self.read_at)


@dataclass(frozen=True, slots=True)
class Signed:
    """A record ready to be stored: its row, its bundle's exact bytes, and `Actors.as_of`."""

    tenant_id: UUID
    id: UUID
    session_id: UUID
    agent_id: UUID
    principal: str
    kind: str
    title: str
    labels_json: str
    occurred_at: datetime
    created_at: datetime
    bundle_sha256: bytes
    bundle_size: int
    key_id: str
    signature: bytes
    trace_id: str | None
    raw: bytes
    agent_as_of: datetime


class Signer:
    """Signs records; one a process, shared by its threads."""

    def __init__(self, database: Database, master_keys: MasterKeys) -> None:
        """Prepare; nothing is read until the first record."""
        self._database = database
        self._master_keys = master_keys
        self._known: _Known | None = None
        self._actors: dict[tuple[UUID, UUID], Actors] = {}

    def sign(
        self, caller: Caller, records: Sequence[NewRecord], tx: Tx | None = None
    ) -> list[Signed | NotFound]:
        """Write and sign records, one after the other; no transaction may be open, as it is slow.

        Of a record whose session does not exist, or is outside the caller's pin, return the error.
        Within `tx` sessions are found that are not committed yet.
        """
        known, actors = self._facts(caller.tenant_id, {each.session_id for each in records}, tx)
        # Their ids and times are in the order of the records, and none lies in the future.
        first = known.now - (len(records) - 1) * _MICROSECOND
        signed: list[Signed | NotFound] = []
        for place, new in enumerate(records):
            found = actors.get(new.session_id)
            if found is None or not caller.may_touch(found.agent_id, found.principal):
                signed.append(NotFound(NO_SESSION))
            else:
                at = first + place * _MICROSECOND
                signed.append(_signed(caller.tenant_id, new, found, known.key, at))
        return signed

    def knows(self, tenant_id: UUID, session_id: UUID) -> bool:
        """Say whether a record of this session is signed without asking the database."""
        known = self._known
        return known is not None and known.is_fresh and (tenant_id, session_id) in self._actors

    def actors(self, tx: Tx, tenant_id: UUID, sessions: set[UUID]) -> Mapping[UUID, Actors]:
        """Return who acts in sessions of a tenant, those that are not committed yet too."""
        return self._facts(tenant_id, sessions, tx)[1]

    def note(self, moment: datetime, key_id: str | None) -> None:
        """Note what time it was just now, and which key signs."""
        known = self._known
        if known is not None and known.key.public.id == key_id:
            self._known = known._replace(moment=moment, read_at=time.monotonic())
        else:
            self._known = None

    def forget(self, records: Sequence[Signed]) -> None:
        """Forget what records were signed by: something of it is no longer so."""
        self._known = None
        for each in records:
            self._actors.pop((each.tenant_id, each.session_id), None)

    def _facts(
        self, tenant_id: UUID, sessions: set[UUID], tx: Tx | None
    ) -> tuple[_Known, Mapping[UUID, Actors]]:
        known = self._known
        found = {
            each: actors
            for each in sessions
            if (actors := self._actors.get((tenant_id, each))) is not None
        }
        missing = sessions - found.keys()
        if known is not None and known.is_fresh and not missing:
            return known, found
        if tx is None:
            with self._database.raw_transaction(tenant_id) as opened:
                known, fresh = self._read(opened, tenant_id, missing)
        else:
            known, fresh = self._read(tx, tenant_id, missing)
        if len(self._actors) + len(fresh) > _MOST_KNOWN:
            self._actors.clear()
        self._actors.update({(tenant_id, each): actors for each, actors in fresh.items()})
        self._known = known
        return known, {**found, **fresh}

    def _read(
        self, tx: Tx, tenant_id: UUID, sessions: set[UUID]
    ) -> tuple[_Known, dict[UUID, Actors]]:
        clock = cursor(tx).execute(_NOW)
        actors = cursor(tx).execute(_ACTORS, (tenant_id, list(sessions)))
        key, since = signing_keys.current_with_age(tx, self._master_keys, Purpose.BUNDLE)
        ((now,),) = clock.fetchall()
        if now < since:
            # It was made after the time was read: no record may be older than its key.
            ((now,),) = cursor(tx).execute(_NOW).fetchall()
        found: dict[UUID, Actors] = {}
        for session_id, agent_id, principal, as_of, external_id, *of_agent in actors.fetchall():
            session = bundle.Session(id=ids.text("ses", session_id))
            if external_id is not None:
                session["external_id"] = external_id
            agent = bundle.agent(ids.text("agt", agent_id), *of_agent)
            found[session_id] = Actors(agent_id, principal, as_of, agent, session)
        return _Known(key, now, time.monotonic()), found


def _signed(
    tenant_id: UUID, new: NewRecord, actors: Actors, key: SigningKey, now: datetime
) -> Signed:
    record_id, occurred_at = ids.new(now), new.occurred_at or now
    agent, labels = actors.agent, dict(new.labels)
    if new.agent_version is not None:
        agent = bundle.Agent(**{**agent, "version": new.agent_version})
    facts = bundle.Record(
        id=ids.text("rec", record_id),
        tenant_id=ids.text("ten", tenant_id),
        session=actors.session,
        agent=agent,
        principal=actors.principal,
        kind=new.kind,
        title=new.title,
        labels=labels,
        occurred_at=rfc3339(occurred_at),
        created_at=rfc3339(now),
    )
    trace_id = labels.get("trace_id", "")
    if bundle.is_trace_id(trace_id):
        facts["trace_id"] = trace_id
    if models := gen_ai.models(new.steps):
        facts["models"] = models
    raw = bundle.write(facts, new.content, new.steps, new.approvals, key_id=key.public.id)
    return Signed(
        tenant_id=tenant_id,
        id=record_id,
        session_id=new.session_id,
        agent_id=actors.agent_id,
        principal=actors.principal,
        kind=new.kind,
        title=new.title,
        labels_json=fields.json_text(labels) or "{}",
        occurred_at=occurred_at,
        created_at=now,
        bundle_sha256=sha256(raw).digest(),
        bundle_size=len(raw),
        key_id=key.public.id,
        signature=key.sign(raw),
        trace_id=facts.get("trace_id"),
        raw=raw,
        agent_as_of=actors.as_of,
    )
