"""The functions of the database, whose text lies in `app/sql`."""

from app import sql
from app.database import Database, cursor
from app.models import NO_TENANT

NAMES = sql.names()


def test_each_file_has_one_function_of_its_name_and_says_what_it_is_for() -> None:
    assert NAMES
    for name in NAMES:
        comment, _, statement = sql.text(name).partition("CREATE OR REPLACE FUNCTION ")
        assert statement.startswith(f"{name}("), name
        assert "CREATE OR REPLACE FUNCTION" not in statement, name
        assert all(line.startswith("--") for line in comment.splitlines()), name
        assert "-- Called by" in comment or "-- Trigger on" in comment, name


def test_what_forbids_a_scan_forbids_compiling_too(
    database: Database,
) -> None:
    """PostgreSQL with LLVM takes a forbidden scan for a query worth seconds of compilation."""
    with database.raw_transaction(NO_TENANT) as raw:
        assert cursor(raw).execute("SHOW jit").fetchone() == ("off",)
    with database.across_tenants(scans=False) as session:
        assert cursor(session).execute("SHOW jit").fetchone() == ("off",)
        forbidding = cursor(session).execute(
            "SELECT proname, 'jit=off' = ANY(proconfig) FROM pg_proc"
            " WHERE 'enable_seqscan=off' = ANY(proconfig)"
        )
        found: dict[str, bool] = dict(forbidding.fetchall())
    assert {*found.values()} == {True}, found
