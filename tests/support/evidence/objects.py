"""Looks into an object store that is a folder, and does its jobs as a worker would."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import text

from app.core.erasure import erasing, moving
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
        of_tenant = session.query(Job).filter(Job.kind == erasing.KIND, Job.finished_at.is_(None))
        job_id = of_tenant.one().id
    return _done(runtime, tenant_id, job_id)


def move(runtime: Runtime, to: str) -> dict[str, Any]:
    """Move everything; return the job's progress."""
    with runtime.database.across_tenants() as session:
        job_id = moving.order(session, to).id
    return _done(runtime, NO_TENANT, job_id)


def sweep(runtime: Runtime) -> int:
    """Sweep as if two days had passed; return how many objects were deleted."""
    grace, erasing.GRACE = erasing.GRACE, timedelta(days=-1)
    try:
        with runtime.database.across_tenants() as session:
            erasing.enqueue_sweep(session)
            job_id = session.query(Job).filter(Job.kind == erasing.SWEEP).one().id
        return int(_done(runtime, NO_TENANT, job_id)["swept"])
    finally:
        erasing.GRACE = grace


def _done(runtime: Runtime, tenant_id: UUID, job_id: UUID) -> dict[str, Any]:
    """Run a job to its end, whatever it waits for."""
    while True:
        with runtime.database.across_tenants() as session:
            due = "UPDATE jobs SET run_at = clock_timestamp() WHERE id = :id"
            session.execute(text(due), {"id": job_id})
            job = session.get_one(Job, (tenant_id, job_id), populate_existing=True)
        if job.finished_at is not None:
            assert job.status == "succeeded", job.error
            return dict(json.loads(job.progress or "{}"))
        run_job.work_on(runtime, tenant_id, job_id)
