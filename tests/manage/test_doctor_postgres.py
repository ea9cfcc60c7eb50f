"""The doctor on PostgreSQL: each of its findings, brought about by the fault that it is for."""

from contextlib import ExitStack
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy.engine import make_url

from app.core.health.parts import State
from app.lib.database.pool import PatientPool
from tests.support.database.doctoring import Installation
from tests.support.servers.pooler import Pooler


def moved(here: Installation, **changes: object) -> str:
    """Return the address of the database with other parts."""
    url = make_url(here.settings.database_url)
    return url.set(**changes).render_as_string(hide_password=False)  # type: ignore[arg-type]


def driver_url(here: Installation) -> str:
    """Return the address of the database as psycopg reads it."""
    return here.settings.database_url.replace("+psycopg", "")


@pytest.mark.parametrize(
    ("changes", "why", "mend"),
    [
        ({"password": "wrong-password"}, "password authentication failed", "set DATABASE_URL"),
        ({"port": 1}, "refused", "start PostgreSQL"),
        ({"query": {"nonsense": "x"}}, "invalid connection option", "behind the ?"),
        ({"database": "elsewhere"}, 'database "elsewhere" does not exist', "that exist"),
    ],
)
def test_a_database_out_of_reach_is_told_with_the_reason_and_the_rest_is_not_checked(
    here: Installation, changes: dict[str, object], why: str, mend: str
) -> None:
    (well,) = here.found("database")["database"]
    assert (well.state, well.text[:11]) == (State.OK, "PostgreSQL ")
    here.change(database_url=moved(here, **changes))
    said = here.failing("database")
    assert why in said
    assert mend in said
    for name in ("roles", "connections"):
        (one,) = here.found(name)[name]
        assert one.state is State.NOT_CHECKED
        assert one.text == "not checked: the database does not answer"


def test_a_role_without_a_free_connection_or_without_tables_is_told_what_to_do(
    own: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatientPool, "patience", 0.1)
    own.run(f"ALTER ROLE {own.role} CONNECTION LIMIT 0")
    said = own.failing("database")
    assert "too many connections for role" in said
    assert "CONNECTION LIMIT" in said
    own.run(f"ALTER ROLE {own.role} CONNECTION LIMIT -1")
    own.run("DROP TABLE alembic_version")
    assert "python -m app.manage migrate" in own.failing("database")
    assert [each.text for each in own.found("roles")["roles"]] == [
        "not checked: the database has not had this release's migrations"
    ]


def test_what_the_role_may_or_lacks_is_told(own: Installation) -> None:
    own.run(f"GRANT postgres TO {own.role}")
    assert "owns the tables" in own.warned("roles")
    own.run(f"REVOKE postgres FROM {own.role}")
    faults = {
        "ALTER ROLE {role} BYPASSRLS": "has BYPASSRLS",
        "ALTER TABLE findings NO FORCE ROW LEVEL SECURITY": "forced on findings, records",
        "ALTER TABLE records DISABLE ROW LEVEL SECURITY": "forced on findings, records",
        "REVOKE INSERT ON jobs FROM {role}": "lacks jobs: INSERT",
        "GRANT EXECUTE ON FUNCTION drop_history_partition TO PUBLIC": "every role",
        "GRANT UPDATE ON audit_entries TO {role}": "may UPDATE audit entries",
    }
    for fault in faults:
        own.run(fault.format(role=own.role))
    found = [each for each in own.found("roles")["roles"] if each.state is State.FAILED]
    for said in faults.values():
        assert any(said in each.text for each in found), (said, found)
    own.run(f"ALTER ROLE {own.role} SUPERUSER")
    assert "is a superuser" in own.found("roles")["roles"][0].text


def test_the_pools_of_two_releases_are_held_against_limits_and_what_is_in_use(
    own: Installation,
) -> None:
    for limit, level, said in (
        (39, State.FAILED, "answered 503"),
        (79, State.WARNING, "two at once, as in a deploy, do not fit"),
        (80, State.OK, "fit"),
    ):
        own.run(f"ALTER ROLE {own.role} CONNECTION LIMIT {limit}")
        (one,) = own.found("connections")["connections"]
        assert one.state is level
        assert f"the role's CONNECTION LIMIT is {limit}" in one.text
        assert said in one.text
    own.change(database_connections=4)
    own.run(f"ALTER ROLE {own.role} CONNECTION LIMIT 30")
    with ExitStack() as held:
        for _ in range(27):
            held.enter_context(psycopg.connect(driver_url(own)))
        assert "of 30 connections are in use (the role's" in own.warned("connections")
    own.change(database_connections=40, web_concurrency=90)
    own.run(f"ALTER ROLE {own.role} CONNECTION LIMIT -1")
    own.run(f"ALTER DATABASE {make_url(own.settings.database_url).database} CONNECTION LIMIT 100")
    most = "up to 110 connections, and the database's CONNECTION LIMIT is 100"
    assert most in own.failing("connections")


def test_a_pooler_before_the_server_is_recognised(here: Installation) -> None:
    with Pooler(make_url(here.settings.database_url)) as pooler:
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        here.change(database_url=moved(here, host="127.0.0.1", port=pooler.port, query=plain))
        (one,) = here.found("connections")["connections"]
        assert one.state is State.OK
        assert "cannot be seen from here" in one.text
        here.change(database_prepare_threshold=2)
        assert "unset DATABASE_PREPARE_THRESHOLD" in here.failing("connections")


@pytest.mark.parametrize(
    ("off", "level", "said"),
    [
        (timedelta(0), State.OK, "agree"),
        (timedelta(seconds=20), State.WARNING, "ahead of"),
        (timedelta(hours=-1), State.FAILED, "behind"),
    ],
)
def test_a_clock_that_is_off_is_told_with_its_side(
    here: Installation, off: timedelta, level: State, said: str
) -> None:
    real = here.clock
    here.clock = lambda: real() + off.total_seconds()
    of_postgres, of_redis = here.found("clock")["clock"]
    assert of_postgres.state is level
    assert said in of_postgres.text
    assert of_redis.text == "not checked: Redis's clock: REDIS_URL is not set"
