"""Looks into an object store that is a folder, and does its jobs as a worker would."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import text

from app.core.erasure import erasing, moving, sweeping
from app.models import NO_TENANT, Job
from jobs.durable import run_job
from jobs.process.runtime import Runtime


def names_in(folder: Path) -> list[str]:
    """Return the names of all objects in a folder."""
    return sorted(
        each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()
    )


def work_off(runtime: Runtime, tenant_id: UUID) -> dict[str, Any]:
    """Erase what is to be erased of a tenant; return the job's progress."""
    with runtime.database.transaction(tenant_id) as session:
        erasing.order(session, tenant_id)
    return _done(runtime, tenant_id, erasing.KIND)


def move(runtime: Runtime, to: str) -> dict[str, Any]:
    """Move everything; return the job's progress."""
    with runtime.database.across_tenants() as session:
        moving.order(session, to)
    return _done(runtime, NO_TENANT, moving.KIND)


def sweep(runtime: Runtime) -> int:
    """Sweep as if two days had passed; return how many objects were deleted."""
    grace, sweeping.GRACE = sweeping.GRACE, timedelta(days=-1)
    try:
        with runtime.database.across_tenants() as session:
            sweeping.enqueue(session)
        return int(_done(runtime, NO_TENANT, sweeping.KIND)["swept"])
    finally:
        sweeping.GRACE = grace


def _done(runtime: Runtime, tenant_id: UUID, kind: str) -> dict[str, Any]:
    """Run the newest job of a kind to its end."""
    while True:
        with runtime.database.across_tenants() as session:
            due = "UPDATE jobs SET run_at = clock_timestamp() WHERE kind = :kind"
            session.execute(text(due), {"kind": kind})
            job = (
                session.query(Job)
                .filter(Job.tenant_id == tenant_id, Job.kind == kind)
                .order_by(Job.id.desc())
                .first()
            )
        assert job is not None
        if job.finished_at is not None:
            assert job.status == "succeeded", job.error
            return dict(json.loads(job.progress or "{}"))
        run_job.work_on(runtime, tenant_id, job.id)
