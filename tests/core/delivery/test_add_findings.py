"""`add_findings`: the bytes that `findings.represent` answers, row-level security, a valid key."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app import ids
from app.core import agents, findings, idempotency, sessions
from app.core.callers import Caller, Pin, Role
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.core.findings import Intake, NewFinding, Posted, Severity, Source, Submission
from app.core.keys import keyring, keys
from app.database import Database, cursor, undone
from app.errors import (
    EventTooLarge,
    IdempotencyKeyInUse,
    NotFound,
    ServiceError,
    Unauthenticated,
    Unavailable,
)
from app.lib import canonical_json
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import make_record, make_session
from tests.support.faults import LONG_ENOUGH, until
from tests.support.secrets import MASTER_KEYS

# What the API lets in: neither NUL nor lone surrogates.
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
TEXT = st.text(CHARACTERS, min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def caller_of(tenant: FreshTenant) -> Caller:
    return Caller(tenant.id, ids.new(), Role.ADMIN, None, "test")


def session_of(database: Database, tenant: FreshTenant, principal: str) -> UUID:
    with database.transaction(tenant.id) as tx:
        agent = agents.create(tx, caller_of(tenant), name="an agent")
        opened = sessions.create(
            tx, caller_of(tenant), agent_id=agent.id, principal=principal, title=None
        )
        return opened.id


class Noted(Intake):
    """An intake that notes the sizes of what goes together, and waits where it is closed."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, MASTER_KEYS)
        self.groups: list[list[int]] = []
        self.open = Event()

    def run(self, posts: Sequence[Posted]) -> list[idempotency.Answered | ServiceError]:
        self.groups.append([len(post.findings.new) for post in posts])
        assert self.open.wait(LONG_ENOUGH)
        return super().run(posts)


def test_a_large_batch_goes_alone_and_small_requests_together(
    database: Database, tenant: FreshTenant
) -> None:
    session_id = session_of(database, tenant, "p")
    caller = caller_of(tenant)
    intake = Noted(database)
    sizes = [1, 1, 2, 51, 3, 50, 60, 70]
    with ThreadPoolExecutor(len(sizes)) as pool:
        tasks = []
        try:
            for size in sizes:
                new = [NewFinding(session_id, "r", "low", "t")] * size
                post = Posted(Submission(caller, new), is_batch=True)
                tasks.append(pool.submit(intake.submit, post))
                until(lambda: sum(map(len, intake.groups)) + intake._group.waiting == len(tasks))
        finally:
            intake.open.set()
        assert [task.result(LONG_ENOUGH).status for task in tasks] == [201] * len(sizes)
    # The first finds nobody before it. Beside it, which is soon over, another call begins once
    # there are enough for one.
    assert intake.groups[:2] == [[1], [1, 2]]
    assert sorted(intake.groups[2:]) == [[3, 50], [51], [60], [70]]


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example("a principal", "a title", "", None)
@given(TEXT, TEXT, st.none() | st.text(CHARACTERS), JSON)
def test_the_answer_and_the_event_are_what_a_get_answers(
    database: Database,
    tenant: FreshTenant,
    principal: str,
    title: str,
    detail: str | None,
    data: object,
) -> None:
    session_id = session_of(database, tenant, principal)
    new = NewFinding(session_id, title, "high", title, detail, data)
    (added,) = hold_what_was_added(database, tenant, [new])
    assert added["principal"] == principal


def test_a_finding_of_a_record_has_every_field_that_its_get_answers(
    database: Database, tenant: FreshTenant, api: Callable[..., Api]
) -> None:
    session = make_session(api())
    record_id = ids.parse("rec", make_record(api(), session["id"])["id"])
    new = [
        NewFinding(session_id, "a.rule", severity, "a title", "detail", {"b": [1, True]}, record_id)
        for severity in Severity
        for session_id in (None, ids.parse("ses", session["id"]))
    ]
    for added in hold_what_was_added(database, tenant, new):
        assert None not in added.values()


def hold_what_was_added(
    database: Database, tenant: FreshTenant, new: list[NewFinding]
) -> list[dict[str, Any]]:
    """Add findings; hold the answer, the rows and the events to say the same, byte for byte."""
    newest = text("SELECT id, payload FROM events ORDER BY created_at DESC, id DESC LIMIT :count")
    with database.transaction(tenant.id) as tx:
        added = findings.add(tx, caller_of(tenant), new)
        emitted = tx.execute(newest, {"count": len(new)}).all()
        rows = [
            findings.find(tx, caller_of(tenant), ids.parse("fnd", finding["id"]))
            for finding in added
        ]
    events_by_data = {}
    for row, finding, wanted in zip(rows, added, new, strict=True):
        answered = findings.represent(row)
        assert canonical_json.dumps(finding) == canonical_json.dumps(answered)
        assert list(finding) == list(answered)
        assert {name: finding[name] for name in ("rule", "severity", "title", "detail")} == {
            name: getattr(wanted, name) for name in ("rule", "severity", "title", "detail")
        }
        assert canonical_json.dumps(finding["data"]) == canonical_json.dumps(wanted.data)
        assert abs(ids.made_at(row.id).timestamp() - row.created_at.timestamp()) < 0.0011
        event = NewEvent("finding.created", answered, row.created_at)
        events_by_data[finding["id"]] = event
    for event_id, stored in emitted:
        finding_id = json.loads(bytes(stored))["data"]["id"]
        assert bytes(stored) == events.payload(event_id, events_by_data.pop(finding_id))
    assert not events_by_data
    return added


def test_a_key_that_was_revoked_adds_nothing(database: Database, tenant: FreshTenant) -> None:
    session_id = session_of(database, tenant, "bob")
    root = keyring.authenticate(database, tenant.root_key, "r")
    known_keys = keyring.Keyring(database)
    with database.transaction(tenant.id) as tx:
        minted = keys.mint(tx, root, keys.NewKey("short-lived", Role.WRITE))
    assert known_keys.recognise(minted["key"], "first").confirmed
    known = known_keys.recognise(minted["key"], "second")
    assert (known.confirmed, known.request_id, known.role) == (False, "second", Role.WRITE)
    with database.statement() as tx:
        findings.add(tx, known, [NewFinding(session_id, "r", "low", "t")])
    with database.transaction(tenant.id) as tx:
        keys.revoke(tx, root, known.key_id)
    with pytest.raises(Unauthenticated), database.statement() as tx:
        findings.add(tx, known, [NewFinding(session_id, "r", "low", "t")])
    with database.transaction(tenant.id) as tx:
        assert tx.scalar(text("SELECT count(*) FROM findings")) == 1
    with pytest.raises(Unauthenticated):
        known_keys.authenticate(minted["key"], "third")
    with pytest.raises(Unauthenticated):
        known_keys.recognise(minted["key"], "fourth")
    known_keys.close()


def test_the_deliveries_of_a_batch_sort_as_the_batch_does(
    database: Database, tenant: FreshTenant
) -> None:
    session_id = session_of(database, tenant, "bob")
    insert = (
        "INSERT INTO webhooks (tenant_id, id, url, max_in_flight, status, sealed_secrets,"
        " sealed_target) VALUES (:tenant, :id, 'https://receiver.test', 1, 'enabled', '', '')"
    )
    with database.transaction(tenant.id) as tx:
        tx.execute(text(insert), {"tenant": tenant.id, "id": ids.new()})
        new = [NewFinding(session_id, "r", "low", str(number)) for number in range(300)]
        findings.add(tx, caller_of(tenant), new)
        payloads = tx.scalars(
            text(
                "SELECT e.payload FROM deliveries AS d"
                " JOIN events AS e ON e.id = d.event_id ORDER BY d.id"
            )
        ).all()
    titles = [json.loads(bytes(payload))["data"]["title"] for payload in payloads]
    assert titles == [str(number) for number in range(300)]


def test_a_session_of_another_tenant_or_outside_the_pin_does_not_exist(
    database: Database, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    theirs = session_of(database, other_tenant, "bob")
    ours = session_of(database, tenant, "bob")
    elsewhere = Caller(tenant.id, ids.new(), Role.WRITE, Pin(ids.new(), "bob"), "test")
    for caller, session_id in ((caller_of(tenant), theirs), (elsewhere, ours)):
        with pytest.raises(NotFound), database.statement() as tx:
            findings.add(tx, caller, [NewFinding(session_id, "r", "low", "t")])


def test_the_functions_open_no_door_that_row_level_security_closes(
    database: Database, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    with database.transaction(tenant.id) as tx:
        definers = tx.scalars(
            text(
                "SELECT proname FROM pg_proc WHERE prosecdef"
                " AND pronamespace = 'public'::regnamespace ORDER BY proname"
            )
        ).all()
    assert definers == [
        "archive_audit_entries",
        "drop_history_partition",
        "make_history_partition",
    ]
    emit = text(
        "SELECT emit_events(:tenant, 'finding.created', ARRAY[CAST(:id AS uuid)],"
        " ARRAY[''::bytea], ARRAY[NULL::uuid], clock_timestamp(), interval '0', NULL)"
    )
    with (
        pytest.raises(Exception, match="row-level security") as refused,
        database.transaction(tenant.id) as tx,
    ):
        tx.execute(emit, {"tenant": other_tenant.id, "id": ids.new()})
    assert isinstance(refused.value.__cause__, psycopg.errors.InsufficientPrivilege)


def test_each_of_many_requests_gets_its_own_and_the_fault_of_one_is_no_others(
    database: Database, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    """Tenants, pins, keys, sources and faults beside each other in one call, in any order."""
    ours, theirs = session_of(database, tenant, "bob"), session_of(database, other_tenant, "eve")
    with database.transaction(tenant.id) as tx:
        root = keyring.authenticate(database, tenant.root_key, "r")
        revoked = Caller(tenant.id, ids.new(), Role.WRITE, None, "r", confirmed=False)
        valid = Caller(tenant.id, root.key_id, Role.WRITE, None, "r", confirmed=False)
        assert tx.scalar(text("SELECT count(*) FROM findings")) == 0
    pinned = Caller(tenant.id, ids.new(), Role.WRITE, Pin(ids.new(), "bob"), "r")
    us, them = caller_of(tenant), caller_of(other_tenant)

    def new(session_id: UUID, title: str, count: int = 1, **more: Any) -> list[NewFinding]:
        return [NewFinding(session_id, "r", "low", f"{title}{n}", **more) for n in range(count)]

    long = [*new(ours, "long", 2), *new(ours, "longer", data="x" * events.MAX_PAYLOAD)]
    asked: list[tuple[Submission, str | type[ServiceError]]] = [
        (Submission(us, new(ours, "a", 3)), "a"),
        (Submission(them, new(theirs, "b", 2), Source.OTLP), "b"),
        (Submission(revoked, new(ours, "revoked")), Unauthenticated),
        (Submission(us, [*new(ours, "stays out"), *new(theirs, "not ours")]), NotFound),
        (Submission(them, new(ours, "not theirs")), NotFound),
        (Submission(pinned, new(ours, "outside the pin")), NotFound),
        (Submission(us, long), EventTooLarge),
        (Submission(valid, new(ours, "c"), Source.RULE), "c"),
        (Submission(them, new(theirs, "d")), "d"),
    ]
    for order in (asked, asked[::-1]):
        with database.statement() as statement:
            found = findings.add_each(statement, [submission for submission, _ in order])
        for (submission, wanted), answer in zip(order, found, strict=True):
            if isinstance(wanted, str):
                assert isinstance(answer, str)
                rows = json.loads(answer)
                titles = [f"{wanted}{n}" for n in range(len(submission.new))]
                assert [row["title"] for row in rows] == titles
                assert {row["source"] for row in rows} == {submission.source}
            else:
                assert type(answer) is wanted
        errors = {type(each): each for each in found if isinstance(each, ServiceError)}
        too_large = errors[EventTooLarge]
        assert [each["pointer"] for each in too_large.members["errors"]] == ["/findings/2"]
    for owner, titles in ((tenant, ["a0", "a1", "a2", "c0"]), (other_tenant, ["b0", "b1", "d0"])):
        with database.transaction(owner.id) as tx:
            stored = tx.scalars(text("SELECT title FROM findings ORDER BY title")).all()
            assert stored == sorted(titles * 2)
            kept = tx.scalar(text("SELECT count(*) FROM events WHERE type = 'finding.created'"))
            assert kept == len(titles) * 2


@pytest.mark.parametrize("keyed", [False, True])
def test_what_the_server_refuses_of_a_group_is_undone_and_each_can_run_alone(
    database: Database, tenant: FreshTenant, keyed: bool
) -> None:
    """U+0000 passes no route; here it stands for whatever the server may refuse of one request."""
    session_id = session_of(database, tenant, "bob")
    intake = Intake(database, MASTER_KEYS)
    us = caller_of(tenant)

    def post(title: str) -> Posted:
        new = [NewFinding(session_id, "r", "low", title)]
        repeat = idempotency.Request.of(us, title, "POST", "/v1/findings", title.encode())
        return Posted(Submission(us, new), is_batch=False, repeat=repeat if keyed else None)

    good, bad = post("good"), post("b\0d")
    with pytest.raises(psycopg.errors.UntranslatableCharacter) as refused:
        intake.run([good, bad, post("better")])
    assert undone(refused.value)
    with database.transaction(tenant.id) as tx:
        assert tx.scalar(text("SELECT count(*) FROM findings")) == 0
    answer = intake.submit(good)
    assert json.loads(answer.body)["title"] == "good"
    with pytest.raises(psycopg.errors.UntranslatableCharacter):
        intake.submit(bad)
    if keyed:
        twice = intake.run([good, post("new"), post("new")])
        assert twice[0] == answer._replace(replayed=True)
        assert isinstance(twice[1], idempotency.Answered)
        assert isinstance(twice[2], IdempotencyKeyInUse)


def test_a_connection_that_is_lost_may_have_done_its_work(
    database: Database, tenant: FreshTenant
) -> None:
    with pytest.raises(Unavailable) as lost, database.statement() as tx:
        cursor(tx).execute("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)")
    assert not undone(lost.value)
