"""Records whose bundles are objects, beside as many whose bundles are rows.

Size a record, a dump loaded anew, expiry until the objects are seen to be gone, and the way in. The
objects are files: what a bucket adds is its own latency.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psycopg
from sqlalchemy import text

from app.core.blobs import rows
from app.core.blobs.store import Blob, BlobStore
from app.core.erasure.erasing import Eraser
from app.core.jobs.steps import Errand
from app.database import Database
from app.lib.objects.stores import Folder
from app.models import Job
from app.settings import Settings
from bench.datasets import library
from bench.figures import Bound, Figure, Reach
from bench.lab import Lab, owner_url
from bench.parts.volume import expiry
from bench.scale import Scale

_BUNDLE_BYTES = 2_000
_TABLES = ("records", "bundles")


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure both ways, and what expiry costs where bundles are objects."""
    with lab.migrated() as (settings, database):
        library.make(settings, database, scale.records, bundle_bytes=_BUNDLE_BYTES)
        size, table = _sizes(settings, scale.records)
        loaded = _loaded_anew(settings, lab.folder)
    with lab.migrated() as (settings, database), tempfile.TemporaryDirectory(dir=lab.folder) as at:
        books = library.make(
            settings, database, scale.records, bundle_bytes=_BUNDLE_BYTES, objects=True
        )
        here, here_table = _sizes(settings, scale.records)
        of = f"{scale.records} bundles of {_BUNDLE_BYTES} bytes"
        note = f"ten million: {here * 10 / 1000:.1f} GB, as rows {size * 10 / 1000:.1f} GB"
        yield Figure(f"database a record, {of}", here, " B", Bound("as rows", size), note=note)
        yield Figure("table of bundles, a record", here_table, " B", Bound("as rows", table))
        anew = _loaded_anew(settings, lab.folder)
        yield Figure(
            "records and bundles of a dump loaded anew", anew, " s", Bound("as rows", loaded)
        )
        folder = Path(at) / "objects"
        _fill(database, folder)
        with database.transaction(books.tenant_id) as session:
            session.execute(text("UPDATE tenants SET expired_through = clock_timestamp()"))
        seconds = expiry.expire(database, books.tenant_id, scale.records)
        worst = max(seconds) * 1000
        yield Figure(f"expired, {of}", scale.records / sum(seconds), "/s")
        yield Figure("longest transaction of it", worst, " ms", None, Reach(at_most=1000))
        given = replace(settings, blob_url=f"file://{folder}")
        yield Figure("objects erased and seen to be gone", *_erased(database, given, books, folder))


def _sizes(settings: Settings, count: int) -> tuple[float, float]:
    """Return the bytes a record of the whole database, and of the table of bundles."""
    with psycopg.connect(owner_url(settings), autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        query = "SELECT pg_database_size(current_database()), pg_total_relation_size('bundles')"
        found = connection.execute(query).fetchone()
    assert found is not None
    return found[0] / count, found[1] / count


def _loaded_anew(settings: Settings, folder: Path) -> float:
    """Return the seconds in which copies of the tables are loaded, indexes included."""
    seconds = 0.0
    with psycopg.connect(owner_url(settings), autocommit=True) as connection:
        connection.execute("SET app.every_tenant = 'on'")
        for table in _TABLES:
            file = folder / f"{table}.copy"
            dump = f"COPY {table} TO STDOUT (FORMAT binary)"
            with file.open("wb") as out, connection.cursor().copy(dump) as copy:
                for part in copy:
                    out.write(part)
            connection.execute(f"CREATE TABLE anew (LIKE {table} INCLUDING ALL)")
            began = time.perf_counter()
            load = "COPY anew FROM STDIN (FORMAT binary)"
            with file.open("rb") as dumped, connection.cursor().copy(load) as copy:
                while data := dumped.read(1 << 20):
                    copy.write(data)
            seconds += time.perf_counter() - began
            connection.execute("DROP TABLE anew")
            file.unlink()
    return seconds


def _fill(database: Database, folder: Path) -> None:
    """Write the objects that rows name, without syncing each: they are the setting, not the bench.

    What a service writes is synced (`accept` shows its rate).
    """
    content = bytes(_BUNDLE_BYTES)

    def write(blob: Blob) -> None:
        file = folder / blob.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    with ThreadPoolExecutor(2) as pool:
        for some in rows.batches(database, "bundles"):
            list(pool.map(write, some, chunksize=250))


def _erased(
    database: Database, settings: Settings, books: library.Library, folder: Path
) -> tuple[float, str, None, None, str]:
    """Run the job that erases, step by step; return its rate, and what it left."""
    eraser = Eraser(BlobStore(Folder(folder)))
    job = Job(id=books.tenant_id, progress='{"erased":0,"bundles":0}')
    began, count = time.perf_counter(), 0
    while True:
        with database.transaction(books.tenant_id) as session:
            step = eraser.step(session, books.tenant_id, job)
        if not isinstance(step, Errand):
            break
        step.talk()
        with database.transaction(books.tenant_id) as session:
            step.record(session, None)
        count += 1_000
    rate = min(count, books.size) / (time.perf_counter() - began)
    left = sum(1 for each in folder.rglob("*") if each.is_file())
    return rate, "/s", None, None, f"{left} left"
