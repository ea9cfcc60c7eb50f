"""Findings: conclusions about an agent's acts that people must know of.

The hot path: one call of the database function `add_findings` resolves the sessions of any number
of findings, of many requests and tenants, stores them, and emits their events. A completed session
still accepts findings: analysis often ends after the session.
"""

import asyncio
import enum
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core import feeds, idempotency
from app.core.callers import Caller
from app.core.delivery import event_types, events
from app.core.idempotency import Answered
from app.database import Database, Tx, cursor, rows_of, undone
from app.errors import BAD_KEY, NotFound, ServiceError, Unauthenticated
from app.lib.crypto.sealing import MasterKeys
from app.lib.group_commit import CROWD, GroupCommit
from app.models import Finding
from app.schemas import fields
from app.schemas.schema import AnswerSchema

MOST_TOGETHER = 1000
"""The most findings that one call of the database stores, unless one request has more."""

# Others do not wait for a larger request, whose tenant may have a hundred webhooks: it goes alone.
_MOST_SHARED = 50


class Severity(enum.StrEnum):
    """Severities of a finding, least severe first."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Source(enum.StrEnum):
    """Where a finding came from: an author's POST, the GenAI spans of an agent, or a rule."""

    API = "api"
    OTLP = "otlp"
    RULE = "rule"


class FindingSchema(AnswerSchema):
    """A finding, with agent and principal of its session.

    `add_findings` (app/sql) writes the same, in this order;
    tests/core/delivery/test_add_findings.py compares the two.
    """

    agent_id = fields.Id("agt")
    created_at = fields.Time()
    data = fields.JsonValue(
        events.MAX_PAYLOAD,
        stored_in="data_json",
        allow_none=True,
        description="Any JSON but null. The event of a finding is at most 256 KiB in all.",
        example={"file": "app.log", "line": 17},
    )
    detail = fields.Text(10_000, allow_none=True)
    id = fields.Id("fnd")
    principal = fields.Text(200)
    record_id = fields.Id("rec", allow_none=True)
    rule = fields.Text(200, example="pii.in-log")
    session_id = fields.Id("ses")
    severity = fields.Choice(Severity)
    source = fields.Choice(Source)
    title = fields.Text(500, example="A customer's address was written to a log")


represent = FindingSchema.of

CREATED = event_types.Entry(
    "An agent did something that people must know about. `data` is the finding.",
    FindingSchema.json_schema(data={"description": "Any JSON that the author attached, or null."}),
    {
        "id": "fnd_019a0b7c5d2e7f3a8b4c5d6e7f8091a2",
        "session_id": "ses_019a0b7c4c1d7e2f9a3b4c5d6e7f8091",
        "record_id": None,
        "agent_id": "agt_019a0b7c3b0c7d1e8f2a3b4c5d6e7f80",
        "principal": "maria@example.com",
        "rule": "payment-above-limit",
        "severity": "high",
        "source": "api",
        "title": "A payment of 12,400 EUR was approved without a second person",
        "detail": "The limit for a single approver is 10,000 EUR.",
        "data": {"amount": 12400, "currency": "EUR"},
        "created_at": "2026-01-31T12:00:00.123456Z",
    },
)
"""What `finding.created` is, for the catalogue of event types."""


class NewFinding(NamedTuple):
    """A finding as its author sends it; `data` is any JSON value, or None.

    It names its session, a record of that session, or both.
    """

    session_id: UUID | None
    rule: str
    severity: str
    title: str
    detail: str | None = None
    data: object = None
    record_id: UUID | None = None


class Submission(NamedTuple):
    """The findings of one request: of one caller and source, stored all or none."""

    caller: Caller
    new: Sequence[NewFinding]
    source: Source = Source.API


_ADD = (
    b"SELECT asked, problem, place, size, lanes, body FROM add_findings(%s, %s, %b::uuid[], %s, %s)"
)


def add(
    tx: Tx, caller: Caller, new: Sequence[NewFinding], source: Source = Source.API
) -> list[dict[str, Any]]:
    """Store findings of one source, emit `finding.created` for each, and return them as JSON.

    All or nothing, in the order given. Raises `NotFound` when a finding's session or record does
    not exist or is outside the caller's pin, `EventTooLarge`, and `Unauthenticated` when the key of
    a caller that is not `confirmed` is no longer valid.
    """
    (added,) = add_each(tx, [Submission(caller, new, source)])
    if isinstance(added, ServiceError):
        raise added
    found: list[dict[str, Any]] = json.loads(added)
    return found


def add_each(tx: Tx, submissions: Sequence[Submission]) -> list[str | ServiceError]:
    """Store what many requests submit, of any tenants, in one call of the database.

    Returns of each its findings as a JSON array, canonical (RFC 8785), or the error that `add`
    raises: then nothing of that request is stored, and all of the others.
    """
    found = cursor(tx).execute(_ADD, _values(tx, submissions)).fetchall()
    return _results(tx, submissions, found)


def _values(tx: Tx, submissions: Sequence[Submission]) -> tuple[object, ...]:
    heads = [
        {
            "tenant": caller.tenant_id.hex,
            "key": None if caller.confirmed else caller.key_id.hex,
            "pin_agent": caller.pin and caller.pin.agent_id.hex,
            "pin_person": caller.pin and caller.pin.principal,
            "source": source,
        }
        for caller, _, source in submissions
    ]
    limits = (tx.info["first_wait"], events.MAX_PAYLOAD)
    tenants = sorted({each.caller.tenant_id for each in submissions})
    return *limits, tenants, json.dumps(heads), _fresh(submissions)


def _results(
    tx: Tx, submissions: Sequence[Submission], found: Sequence[tuple[Any, ...]]
) -> list[str | ServiceError]:
    results: list[str | ServiceError] = [""] * len(submissions)
    before = list(accumulate((len(each.new) for each in submissions), initial=0))
    for asked, problem, place, size, lanes, body in found:
        caller, new, _ = submissions[asked - 1]
        if problem is None:
            events.ring_webhooks(tx, caller.tenant_id, lanes)
            results[asked - 1] = body
        else:
            pointer = f"/findings/{place - before[asked - 1] - 1}" if len(new) > 1 else ""
            results[asked - 1] = _refusal(problem, pointer, size)
    return results


class Posted(NamedTuple):
    """A POST of findings: of one, or of a batch; `repeat` is its Idempotency-Key, if any."""

    findings: Submission
    is_batch: bool
    repeat: idempotency.Request | None = None


class Intake:
    """Takes the findings of a process's requests: those that arrive together go together."""

    def __init__(self, database: Database, master_keys: MasterKeys) -> None:
        """Prepare; nothing runs until the first POST."""
        self._database = database
        self._master_keys = master_keys
        self._group = GroupCommit(
            self.run,
            most=MOST_TOGETHER,
            on_loop=self._run_on_loop,
            weigh=_weight,
            crowd=CROWD,
            apart=undone,
        )

    def submit(self, post: Posted) -> Answered:
        """Store one request's findings, once, and return its answer; raises as `add` does.

        Also `IdempotencyKeyReused` and `IdempotencyKeyInUse`.
        """
        return self._group.submit(post)

    async def join(self, post: Posted) -> Answered:
        """Do as `submit`, in a coroutine."""
        return await self._group.join(post)

    def run(self, posts: Sequence[Posted]) -> list[Answered | ServiceError]:
        """Store what several requests post; return the answer of each, or its error."""
        if all(post.repeat is None for post in posts):
            with self._database.statement() as tx:
                return _answers(posts, add_each(tx, [post.findings for post in posts]))

        def store(tx: Tx, places: Sequence[int]) -> list[bytes | ServiceError]:
            added = add_each(tx, [posts[place].findings for place in places])
            return [_body(posts[place], each) for place, each in zip(places, added, strict=True)]

        # An Idempotency-Key takes further statements: a transaction, for all of the group.
        with self._database.raw_transaction(posts[0].findings.caller.tenant_id) as tx:
            repeats = [post.repeat for post in posts]
            return idempotency.once_each(
                tx, self._master_keys, repeats, lambda places: store(tx, places)
            )

    async def _run_on_loop(self, posts: Sequence[Posted]) -> list[Answered | ServiceError]:
        if any(post.repeat is not None for post in posts):
            return await asyncio.to_thread(self.run, posts)
        asked = [post.findings for post in posts]
        async with self._database.awaited_statement() as tx:
            found = await rows_of(tx, _ADD, _values(tx, asked))
            return _answers(posts, _results(tx, asked, found))


def _answers(
    posts: Sequence[Posted], added: Sequence[str | ServiceError]
) -> list[Answered | ServiceError]:
    bodies = map(_body, posts, added)
    return [each if isinstance(each, ServiceError) else Answered(201, each) for each in bodies]


def _weight(post: Posted) -> int:
    count = len(post.findings.new)
    return count if count <= _MOST_SHARED else MOST_TOGETHER


def _body(post: Posted, added: str | ServiceError) -> bytes | ServiceError:
    """Return the answer to a POST from the JSON array of its findings, or its error."""
    if isinstance(added, ServiceError):
        return added
    return b'{"data":%b}' % added.encode() if post.is_batch else added[1:-1].encode()


def rows(
    session: Session, caller: Caller, filters: Mapping[str, object], before: UUID | None, limit: int
) -> Sequence[Finding]:
    """Return one page of the findings that the caller may see (see `feeds.newest`)."""
    return session.scalars(feeds.newest(Finding, caller, filters, before, limit)).all()


def find(session: Session, caller: Caller, finding_id: UUID | None) -> Finding:
    """Return one finding; raises `NotFound` if it does not exist or the caller may not see it."""
    missing = "There is no finding with this id."
    return feeds.find(session, Finding, caller, finding_id, missing)


_COUNT = "SELECT count(*) FROM findings WHERE tenant_id = %s AND record_id = %s"
_LAST = "SELECT id FROM findings WHERE tenant_id = %s AND record_id = %s ORDER BY id DESC LIMIT 1"


def state_of_record(tx: Tx, tenant_id: UUID, record_id: UUID) -> str:
    """Name the set of a record's findings, which are added, and never changed or deleted."""
    cur = cursor(tx)
    count = cur.execute(_COUNT, (tenant_id, record_id)).fetchall()
    return str(count + cur.execute(_LAST, (tenant_id, record_id)).fetchall())


def of_record(
    session: Session, tenant_id: UUID, record_id: UUID, most: int
) -> tuple[list[dict[str, Any]], int]:
    """Return a record's findings as their GET answers, in order of creation, and their number.

    Those beyond `most` bytes of text and data are left out; the first never is.
    """
    statement = (
        select(Finding)
        .where(Finding.tenant_id == tenant_id, Finding.record_id == record_id)
        .order_by(Finding.id)
        .execution_options(yield_per=100)
    )
    listed: list[dict[str, Any]] = []
    size = 0
    with closing(session.scalars(statement)) as found:
        for row in found:
            size += 500 + sum(len((text or "").encode()) for text in (row.detail, row.data_json))
            if listed and size > most:
                break
            listed.append(represent(row))
    ((total,),) = cursor(session).execute(_COUNT, (tenant_id, record_id)).fetchall()
    return listed, total


def _fresh(submissions: Sequence[Submission]) -> str:
    """Return new findings as the JSON argument of `add_findings`."""
    count = sum(len(each.new) for each in submissions)
    tails = zip(ids.tails(count), ids.tails(count), strict=True)
    return json.dumps(
        [
            {
                "asked": asked,
                "session_id": finding.session_id and finding.session_id.hex,
                "record_id": finding.record_id and finding.record_id.hex,
                "rule": finding.rule,
                "severity": finding.severity,
                "title": finding.title,
                "detail": finding.detail,
                "data": fields.json_text(finding.data),
                "finding_tail": finding_tail,
                "event_tail": event_tail,
            }
            for asked, submission in enumerate(submissions, 1)
            for finding, (finding_tail, event_tail) in zip(submission.new, tails, strict=False)
        ]
    )


def _refusal(problem: str, pointer: str, size: int) -> ServiceError:
    if problem == "key":
        return Unauthenticated(BAD_KEY)
    if problem == "size":
        return events.too_large(size, pointer)
    where = f" ({pointer}/{problem}_id)" if pointer else ""
    return NotFound(f"There is no {problem} with this id{where}.")
