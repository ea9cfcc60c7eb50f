"""The migrated schema matches the models, and its keys, walls and privileges hold."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from app.database import Database
from app.models import Base
from app.settings import Settings
from tests.support.callers.api import FreshTenant

# The two hashes by which a caller's tenant is found.
TENANT_IS_FOUND_BY = {"api_keys_digest", "share_links_digest"}
# The service's own: keys that sign for everyone, and a log that names no tenant.
WITHOUT_TENANT = (
    "alembic_version",
    "tenants",
    "signing_keys",
    "log_generations",
    "log_leaves",
    "log_tiles",
    "checkpoints",
    "checkpoint_timestamps",
    "checkpoint_cosignatures",
    "anchoring_troubles",
    "master_keys",
    "sealed_notes",
    "history_policy",
    "sweeps",
    "epochs",
    "webhook_counts",
    "history_marks",
    "operator_sessions",
)


def test_the_models_have_exactly_the_columns_that_migrations_made(admin_engine: Engine) -> None:
    with admin_engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, Base.metadata)
    ours = set(Base.metadata.tables)
    about_columns = [
        difference
        for difference in differences
        if isinstance(difference, list)
        or (difference[0] in ("add_table", "add_column", "remove_column"))
        or (difference[0] == "remove_table" and difference[1].name in ours)
    ]
    assert about_columns == []


def test_every_key_and_unique_index_begins_with_the_tenant(admin_engine: Engine) -> None:
    with admin_engine.connect() as connection:
        found = connection.execute(
            text("""
            SELECT i.relname AS name, a.attname AS first FROM pg_index AS x
              JOIN pg_class AS i ON i.oid = x.indexrelid
              JOIN pg_class AS t ON t.oid = x.indrelid
              JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = x.indkey[0]
             WHERE t.relnamespace = 'public'::regnamespace AND x.indisunique
               AND NOT t.relname = ANY (:others)
            """),
            {"others": list(WITHOUT_TENANT)},
        ).all()
    assert len(found) > 15
    wrong = {row.name for row in found if row.first != "tenant_id"}
    assert wrong == TENANT_IS_FOUND_BY


def test_a_transaction_sees_its_own_tenant_alone(
    database: Database, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    with database.transaction(tenant.id) as session:
        assert session.scalars(text("SELECT id FROM tenants")).all() == [tenant.id]
        seen = session.scalars(text("SELECT DISTINCT tenant_id FROM audit_entries")).all()
    assert seen == [tenant.id]
    with database.across_tenants() as session:
        everyone = set(session.scalars(text("SELECT id FROM tenants")))
    assert {tenant.id, other_tenant.id} <= everyone


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "INSERT INTO agents (tenant_id, id, name) VALUES (:other, gen_random_uuid(), 'x')",
            "row-level security",
        ),
        ("UPDATE audit_entries SET action = 'x'", "permission denied"),
        ("DELETE FROM audit_entries", "permission denied"),
        ("DROP TABLE findings", "must be owner"),
        (
            "SELECT drop_history_partition('findings', '01a1e1a7-4c00-0000-0000-000000000000')",
            "no history in table",
        ),
    ],
)
def test_what_the_database_refuses_the_service_itself(
    database: Database,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    statement: str,
    why: str,
) -> None:
    """Rows of another tenant, changes of what was audited, tables but partitions of history."""
    with pytest.raises(DBAPIError, match=why), database.transaction(tenant.id) as session:
        session.execute(text(statement), {"other": other_tenant.id})


def test_what_runs_with_its_owners_rights_is_for_the_service_alone(
    admin_engine: Engine, settings: Settings
) -> None:
    query = text("""
        SELECT p.proname AS name, p.proconfig::text AS config,
               has_function_privilege('nobody_in_particular', p.oid, 'EXECUTE') AS anyone,
               has_function_privilege(:service, p.oid, 'EXECUTE') AS service
          FROM pg_proc AS p
         WHERE p.prosecdef AND p.pronamespace NOT IN
               ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
         ORDER BY 1
    """)
    with admin_engine.connect() as connection:
        connection.execute(text("CREATE ROLE nobody_in_particular"))
        service = make_url(settings.database_url).username
        found = connection.execute(query, {"service": service}).all()
        connection.rollback()
    assert [row.name for row in found] == [
        "archive_audit_entries",
        "drop_history_partition",
        "make_history_partition",
    ]
    assert all(row.service and not row.anyone for row in found)
    assert all("search_path=" in row.config for row in found)
