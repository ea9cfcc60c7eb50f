"""A process that downloads a pack, builds it anew, and prints the memory that it took.

Called as `python -m tests.jobs.packs.pack_memory TENANT RECORD KEY`, with the service's settings in
the environment. For each of three steps it prints by how many KiB the peak grew in it: downloading
the pack, taking the bundle apart, and building the pack.
"""

import itertools
import sys
from pathlib import Path
from uuid import UUID

from sqlalchemy import text

from app import ids, settings
from app.core.packs import building
from app.core.packs.subjects import RecordSubject
from app.core.records import bundles
from app.evidence import bundle
from app.models import Record
from app.web import create_app
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime


def download(record: str, key: str) -> None:
    """Read the pack as it is sent, and keep nothing of it."""
    client = create_app(settings.load()).test_client()
    headers = {"Authorization": f"Bearer {key}"}
    answer = client.get(f"/v1/records/{record}/evidence.zip", headers=headers, buffered=False)
    assert answer.status_code == 200
    assert sum(map(len, answer.iter_encoded())) == answer.content_length


def read(runtime: Runtime, tenant_id: UUID, record: str) -> None:
    """Take the bundle apart, as any build must."""
    record_id = ids.parse("rec", record)
    assert record_id is not None
    with runtime.database.transaction(tenant_id) as session:
        raw = bundles.read(session, runtime.settings.master_keys, tenant_id, record_id)
    assert raw is not None
    assert bundle.read(raw)["steps"]


def build(runtime: Runtime, tenant_id: UUID, record: str) -> None:
    """Build the pack, as if it had never been."""
    with runtime.database.transaction(tenant_id) as session:
        session.execute(text("DELETE FROM evidence_packs"))
        row = session.get_one(Record, (tenant_id, ids.parse("rec", record)))
        job = building.order(session, RecordSubject(session, row))
    work_on(runtime, tenant_id, job.id)
    with runtime.database.transaction(tenant_id) as session:
        built = session.scalar(text("SELECT count(*) FROM evidence_packs WHERE size > 0"))
    assert built == 1


def _peak() -> int:
    """Return the most that was resident, in KiB (getrusage would count the parent's, too)."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def main(tenant: str, record: str, key: str) -> None:
    """Take the three steps."""
    here, tenant_id = Runtime.open(settings.load(), threads=4), UUID(tenant)
    peaks = [_peak()]
    download(record, key)
    peaks.append(_peak())
    read(here, tenant_id, record)
    peaks.append(_peak())
    build(here, tenant_id, record)
    peaks.append(_peak())
    here.close()
    for before, after in itertools.pairwise(peaks):
        print(after - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
