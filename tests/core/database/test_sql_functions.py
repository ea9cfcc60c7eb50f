"""The functions of the database are those whose text lies in `app/sql`."""

import re

from sqlalchemy import Connection, Engine, text

from app import sql
from app.database import Database, cursor
from app.models import NO_TENANT

NAMES = sql.names()


def definitions(connection: Connection, schema: str) -> dict[str, str]:
    """Return each function of a schema, by its name and arguments."""
    found = connection.execute(
        text(
            "SELECT proname || '(' || pg_get_function_identity_arguments(oid) || ')',"
            " pg_get_functiondef(oid) FROM pg_proc"
            " WHERE pronamespace = CAST(:schema AS regnamespace)"
        ),
        {"schema": schema},
    )
    return {name: normalised(definition, schema) for name, definition in found}


def normalised(definition: str, schema: str) -> str:
    """Return a definition without its schema, its comments and its line breaks."""
    bare = re.sub("--.*", "", definition.replace(f"FUNCTION {schema}.", "FUNCTION "))
    return re.sub(r"(?<=\() | (?=\))", "", " ".join(bare.split()))


def test_each_function_of_a_migrated_database_is_that_of_its_file(admin_engine: Engine) -> None:
    with admin_engine.connect() as connection:
        migrated = definitions(connection, "public")
        connection.execute(text("CREATE SCHEMA files"))
        connection.execute(text("SET LOCAL search_path = files, public"))
        for name in NAMES:
            connection.execute(text(sql.text(name)))
        assert definitions(connection, "files") == migrated
        connection.rollback()


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
        found = dict(forbidding.fetchall())
    assert {*found.values()} == {True}, found
