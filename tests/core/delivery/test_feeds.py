"""The statements behind the feeds: every filter walks an index, whatever the planner believes."""

from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core import agents, feeds, findings, sessions, tenants
from app.core.callers import Caller, Pin, Role
from app.core.findings import NewFinding
from app.database import Database
from app.models import AgentSession, Finding
from tests.support.callers.api import FreshTenant
from tests.support.database.plans import rows_read
from tests.support.secrets import MASTER_KEYS

BUSY, IDLE = "busy@example.com", "idle@example.com"


def caller_of(tenant: FreshTenant, pin: Pin | None = None) -> Caller:
    return Caller(tenant.id, ids.new(), Role.ADMIN, pin, "a-request")


@pytest.fixture(scope="module")
def tenant(database: Database) -> FreshTenant:
    """Return a tenant of all tests here, which only read."""
    return FreshTenant(*tenants.create(database, MASTER_KEYS, "with a crowd"))


@pytest.fixture(scope="module")
def crowd(database: Database, tenant: FreshTenant, admin_engine: Engine) -> dict[str, UUID]:
    """Make a busy agent with thousands of sessions and findings, and an idle one without."""
    caller = caller_of(tenant)
    with database.transaction(tenant.id) as session:
        busy = agents.create(session, caller, name="busy").id
        idle = agents.create(session, caller, name="idle").id
        run = sessions.create(session, caller, agent_id=busy, principal=BUSY).id
        empty = sessions.create(session, caller, agent_id=idle, principal=IDLE).id
        sessions.complete(session, caller, empty, outcome=sessions.GivenOutcome.FAILED)
        new = [NewFinding(run, "a-rule", "high", "a title")] * 1000
        for _ in range(3):
            findings.add(session, caller, new)
        session.execute(
            text(
                "INSERT INTO sessions (tenant_id, id, agent_id, principal, status)"
                " SELECT :tenant, gen_random_uuid(), :agent, :principal, 'open'"
                "   FROM generate_series(1, 3000)"
            ),
            {"tenant": tenant.id, "agent": busy, "principal": BUSY},
        )
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE sessions, findings"))
    return {"busy": busy, "idle": idle, "run": run, "empty": empty}


@pytest.mark.parametrize(
    "filtered",
    [
        {},
        {"agent_id": "busy"},
        {"agent_id": "idle"},
        {"session_id": "run"},
        {"session_id": "empty"},
        {"principal": BUSY},
        {"principal": IDLE},
        {"severity": "high"},
        {"severity": "critical"},
        {"source": "api"},
        {"source": "rule"},
        {"rule": "a-rule"},
        {"rule": "no-rule"},
        {"agent_id": "busy", "severity": "critical"},
        {"principal": IDLE, "rule": "a-rule"},
    ],
)
def test_a_page_of_findings_reads_little_more_than_it_shows(
    database: Database, tenant: FreshTenant, crowd: dict[str, UUID], filtered: dict[str, str]
) -> None:
    filters = {name: crowd.get(value, value) for name, value in filtered.items()}
    statement = feeds.newest(Finding, caller_of(tenant), filters, None, 51)
    with database.transaction(tenant.id) as session:
        assert rows_read(session, statement) < 250


@pytest.mark.parametrize(
    "filtered",
    [
        {},
        {"agent_id": "busy"},
        {"agent_id": "idle"},
        {"principal": BUSY},
        {"principal": IDLE},
        {"status": "open"},
        {"status": "completed"},
        {"status": "completed", "agent_id": "busy"},
        {"status": "completed", "principal": BUSY},
    ],
)
def test_a_page_of_sessions_reads_little_more_than_it_shows(
    database: Database, tenant: FreshTenant, crowd: dict[str, UUID], filtered: dict[str, str]
) -> None:
    filters = {name: crowd.get(value, value) for name, value in filtered.items()}
    statement = feeds.newest(AgentSession, caller_of(tenant), filters, None, 51)
    with database.transaction(tenant.id) as session:
        assert rows_read(session, statement) < 250


def test_a_time_before_all_findings_reads_none_of_them(
    database: Database, tenant: FreshTenant, crowd: dict[str, UUID]
) -> None:
    with database.transaction(tenant.id) as session:
        moment = findings.rows(session, caller_of(tenant), {}, None, 1)[0].created_at
        for bound in ({"until": moment.replace(year=2020)}, {"since": moment.replace(year=2200)}):
            statement = feeds.newest(Finding, caller_of(tenant), bound, None, 51)
            assert rows_read(session, statement) == 0


def test_a_pin_holds_whatever_the_filters_ask_for(
    database: Database, tenant: FreshTenant, crowd: dict[str, UUID]
) -> None:
    pinned = caller_of(tenant, Pin(crowd["idle"], IDLE))
    with database.transaction(tenant.id) as session:
        for filters in ({}, {"agent_id": crowd["busy"]}, {"principal": BUSY}):
            assert findings.rows(session, pinned, filters, None, 51) == []
        (own,) = sessions.rows(session, pinned, {}, None, 51)
    assert own.id == crowd["empty"]


def test_rows_of_other_tenants_are_behind_a_wall_even_for_a_caller_made_up_here(
    database: Database,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    crowd: dict[str, UUID],
) -> None:
    with database.transaction(other_tenant.id) as session:
        assert findings.rows(session, caller_of(tenant), {}, None, 51) == []
