"""Nothing of an expired bundle's content is left; its record is found by metadata."""

import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select, text

from app import ids
from app.core import word_index
from app.core.records import search
from app.database import Database
from app.models import BundleWords, RecordWords
from app.settings import Settings
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_record, record_of
from tests.support.database.databases import waiting
from tests.support.faults import until
from tests.support.workers.expiring import Expirer, keep_for


@pytest.mark.parametrize("indexed", ["at once", "later", "never"])
def test_an_expired_record_is_found_by_its_metadata_alone(
    api: ApiOf, session: dict[str, Any], expirer: Expirer, index: Callable[[], int], indexed: str
) -> None:
    record = make_record(api(), session["id"], title="quince", content="medlar")
    keep_for(api(), 1)
    assert api().get("/v1/records?q=medlar").json["data"]
    if indexed == "at once":
        assert index() == 1
    expirer.age(record, days=2)
    for _ in range(2):
        assert api().get("/v1/records?q=medlar").json["data"] == []
        assert len(api().get("/v1/records?q=quince").json["data"]) == 1
        expirer.run()
        if indexed == "later":
            index()


def test_words_that_are_indexed_while_their_bundle_expires_go_with_it(
    api: ApiOf,
    session: dict[str, Any],
    expirer: Expirer,
    database: Database,
    settings: Settings,
    tenant: FreshTenant,
    admin_engine: Engine,
) -> None:
    record = make_record(api(), session["id"], content="medlar")
    keep_for(api(), 2)
    with ThreadPoolExecutor(1) as pool:
        with database.transaction(tenant.id) as indexing:
            source = search.source(settings.master_keys)
            assert word_index.index_piece(indexing, source, tenant.id, ids.new()) == 1
            expirer.age(record, days=3)
            asked = pool.submit(expirer.run)
            until(lambda: waiting(admin_engine, "DELETE FROM bundles") == 1)
        assert asked.result() == {"expired": 1}
    with database.transaction(tenant.id) as after:
        left = [
            after.scalars(select(table.record_id).where(table.tenant_id == tenant.id)).all()
            for table in (RecordWords, BundleWords)
        ]
    assert left == [[ids.parse("rec", record["id"])], []]


def test_nothing_of_the_content_is_left_in_any_table_or_file(
    api: ApiOf,
    session: dict[str, Any],
    expirer: Expirer,
    index: Callable[[], int],
    admin_engine: Engine,
) -> None:
    gone, kept = (f"marker{secrets.token_hex(12)}" for _ in range(2))
    body = record_of(
        session["id"], kind="note", title=kept, content={gone: [gone]}, steps=[_step_marked(gone)]
    )
    made = api().post("/v1/records", body, headers={"Idempotency-Key": gone[6:]}).json
    assert api().get(f"/v1/records?q={gone}").json["data"] == [made]
    assert index() == 1
    assert api().get(f"/v1/records?q={gone}").json["data"] == [made]
    keep_for(api(), 1)
    expirer.age(made, days=2)
    assert expirer.run() == {"expired": 1}
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CHECKPOINT"))
        query = """
            SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p')
               AND relnamespace = 'public'::regnamespace"""
        tables = list(connection.scalars(text(query)))
        assert len(tables) > 20
        data = Path(connection.execute(text("SHOW data_directory")).scalar_one())
        found = {
            marker: [table for table in tables if _holds(connection, table, marker)]
            for marker in (gone, kept)
        }
    assert found == {gone: [], kept: ["records"]}
    files = {marker: list(_files_with(data, marker)) for marker in (gone, kept)}
    assert files[kept], "the search must be able to find something"
    assert files[gone] == []


def _step_marked(marker: str) -> dict[str, Any]:
    """Return a step that has the marker wherever a caller may write."""
    return {
        "name": marker,
        "kind": marker,
        "started_at": "2026-01-31T12:00:00Z",
        "ended_at": "2026-01-31T12:00:01Z",
        "status": "ok",
        "attributes": {marker: marker},
        "inputs": [marker],
        "outputs": {marker: marker},
        "events": [{"name": marker, "at": "2026-01-31T12:00:00Z", "attributes": {marker: marker}}],
    }


def _holds(connection: Any, table: str, marker: str) -> bool:
    rows = f"SELECT to_jsonb(t)::text AS row FROM {table} AS t"
    wanted = {"plain": f"%{marker}%", "hex": f"%{marker.encode().hex()}%"}
    query = f"SELECT EXISTS (SELECT FROM ({rows}) AS r WHERE row LIKE :plain OR row LIKE :hex)"
    return bool(connection.scalar(text(query), wanted))


def _files_with(folder: Path, marker: str) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            if path.is_file() and marker.encode() in path.read_bytes():
                yield path
