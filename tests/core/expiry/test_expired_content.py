"""Nothing of an expired bundle's content is left; its record is found by metadata."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from tests.support.callers.api import ApiOf
from tests.support.callers.making import make_record, record_of
from tests.support.workers.expiring import Expirer, keep_for


def test_an_expired_record_is_found_by_its_metadata_alone(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    record = make_record(api(), session["id"], title="quince", content="medlar")
    keep_for(api(), 1)
    assert api().get("/v1/records?q=medlar").json["data"]
    expirer.age(record, days=2)
    for _ in range(2):
        assert api().get("/v1/records?q=medlar").json["data"] == []
        assert len(api().get("/v1/records?q=quince").json["data"]) == 1
        expirer.run()


def test_nothing_of_the_content_is_left_in_any_table_or_file(
    api: ApiOf,
    session: dict[str, Any],
    expirer: Expirer,
    admin_engine: Engine,
) -> None:
    gone, kept = (f"marker{secrets.token_hex(12)}" for _ in range(2))
    body = record_of(
        session["id"], kind="note", title=kept, content={gone: [gone]}, steps=[_step_marked(gone)]
    )
    made = api().post("/v1/records", body, headers={"Idempotency-Key": gone[6:]}).json
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
