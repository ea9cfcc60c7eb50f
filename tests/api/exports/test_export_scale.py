"""A period export of 100,000 records: what memory its job takes, and its verification."""

import gc
import os
import subprocess
import sys
import time
import tracemalloc
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app import ids
from app.core.exports import building
from app.core.exports.building import Builder
from app.evidence import verify
from app.ledger import leaves, merkle
from jobs.durable import run_job
from jobs.process.runtime import Runtime
from tests.support.callers.making import make_session
from tests.support.evidence.exporting import Exporter

pytestmark = pytest.mark.toolbox

MANY = 100_000
# The interpreter that verifies: the oldest that it promises is `python3.8`.
PYTHON = os.environ.get("VERIFY_PYTHON", sys.executable)
MOST_MEMORY = 64 << 20
_RUN = """
import sys, time
sys.path.insert(0, sys.argv[1])
import verify
began = time.monotonic()
code = verify.main(["export", sys.argv[2]])
print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
peak = open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]
print(f"peak {peak}")
sys.exit(code)
"""


def put_records(exporter: Exporter, owner: Engine, count: int, since: datetime) -> None:
    """Put records into the database and the log as `add_records` leaves them."""
    session = make_session(exporter.api(), title="of many")
    keys = [
        ids.parse(prefix, session[name]) for prefix, name in (("ses", "id"), ("agt", "agent_id"))
    ]
    with owner.begin() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        ((key_id,),) = raw.execute(
            "SELECT key_id FROM signing_keys WHERE purpose = 'bundle' LIMIT 1"
        )
        moments = [since + timedelta(milliseconds=10 * number) for number in range(count)]
        digests = [os.urandom(32) for _ in range(count)]
        columns = """tenant_id, id, session_id, agent_id, principal, kind, title, labels_json,
                     occurred_at, bundle_sha256, bundle_size, key_id, signature, created_at"""
        copy = f"COPY records ({columns}) FROM STDIN"
        with raw.cursor() as cursor, cursor.copy(copy) as rows:
            for at, digest in zip(moments, digests, strict=True):
                told = (
                    "alice",
                    "tool.call",
                    "A record",
                    "{}",
                    at,
                    digest,
                    1,
                    key_id,
                    bytes(64),
                    at,
                )
                rows.write_row((exporter.tenant.id, ids.new(at), *keys, *told))
        copy = "COPY log_leaves (id, leaf_hash, data) FROM STDIN"
        with raw.cursor() as cursor, cursor.copy(copy) as rows:
            for at, digest in zip(moments, digests, strict=True):
                data = leaves.record(digest)
                rows.write_row((ids.new(at), merkle.leaf_hash(data), data))
    exporter.log.run()


def test_a_hundred_thousand_records_take_no_more_memory_than_half_of_them(
    exporter: Exporter, admin_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(here: Runtime) -> run_job.Work:
        return Builder(here.database, here.settings, grace=timedelta(0)).step

    monkeypatch.setitem(run_job.KINDS, building.KIND, build)
    exporter.records(1)
    since = exporter.now() - timedelta(minutes=30)
    put_records(exporter, admin_engine, MANY, since)
    half = since + timedelta(milliseconds=10 * MANY // 2)

    began = time.monotonic()
    plain = exporter.made(since)
    print(f"made in {time.monotonic() - began:.1f} s, {plain['size']:,} bytes")
    peaks = []
    export = plain
    for until in (half, None):
        gc.collect()
        tracemalloc.start()
        export = exporter.made(since, until)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    print(f"peaks: {[each >> 20 for each in peaks]} MiB")
    path = tmp_path / "export.ndjson"
    path.write_bytes(exporter.file(export))
    where = str(Path(verify.__file__).parent)
    done = subprocess.run(
        [PYTHON, "-I", "-S", "-c", _RUN, where, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)

    assert export["records"] == MANY + 1
    assert peaks[1] < peaks[0] * 1.25
    assert peaks[1] < MOST_MEMORY
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rpartition("peak ")[2]) << 10 < MOST_MEMORY
    assert "VALID        other leaves" in done.stdout
