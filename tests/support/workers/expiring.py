"""Makes records old and lets what is due expire, as the clock and a worker would."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, text

from app import ids
from app.core.jobs import leases, steps
from app.core.records import expiry, retention
from app.database import Database
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import uuid_of
from tests.support.database.databases import execute, scalar


class Expirer:
    """One tenant's expiry, without clock and broker."""

    def __init__(self, database: Database, owner: Engine, tenant: FreshTenant) -> None:
        self._database = database
        self._owner = owner
        self._tenant = tenant

    def age(self, record: dict[str, Any], *, days: float) -> None:
        """Let a record have been made so long ago."""
        age = "UPDATE records SET created_at = clock_timestamp() - make_interval(secs => :s)"
        made = uuid_of(record["id"])
        execute(self._owner, f"{age} WHERE id = :id", s=days * 86400, id=made)

    def run_released(self, hold: dict[str, Any]) -> dict[str, Any]:
        """Take every step of the job that a hold's release has enqueued; return its progress."""
        query = "SELECT id FROM jobs WHERE dedupe_key = :key AND finished_at IS NULL"
        return self.finish(scalar(self._owner, query, key=f"hold {hold['id'][4:]}"))

    def older(self, *, days: int) -> int:
        """Return how many bundles a retention of so many days would delete."""
        with self._database.transaction(self._tenant.id) as session:
            return retention.count_older(session, self._tenant.id, timedelta(days=days))

    def enqueue_due(self) -> UUID | None:
        """Enqueue a job for what is due, as the clock's entry does; return its id."""
        with self._database.transaction(self._tenant.id) as session:
            job = expiry.enqueue_due(session, self._tenant.id)
            return None if job is None else job.id

    def finish(self, job_id: UUID) -> dict[str, Any]:
        """Take every step that is left of a job; return its progress."""
        while True:
            with self._database.transaction(self._tenant.id) as session:
                job = leases.claim(session, self._tenant.id, job_id)
                assert job is not None
                step = expiry.step(session, self._tenant.id, job)
                assert steps.advance(session, job, step)
            if step.cursor is None:
                return dict(step.progress)

    def run(self) -> dict[str, Any] | None:
        """Expire what is due; None when nothing was."""
        job_id = self.enqueue_due()
        return None if job_id is None else self.finish(job_id)

    def bundles(self) -> set[str]:
        """Return the ids of the records that have a bundle."""
        with self._database.transaction(self._tenant.id) as session:
            found = session.scalars(text("SELECT record_id FROM bundles"))
            return {ids.text("rec", each) for each in found}


def expire_link(engine: Engine, share_link_id: str) -> None:
    """Let a link's time be over."""
    passed = (
        "created_at = created_at - interval '2 days', expires_at = expires_at - interval '2 days'"
    )
    execute(engine, f"UPDATE share_links SET {passed} WHERE id = :id", id=uuid_of(share_link_id))


def keep_for(api: Api, days: int | None) -> None:
    """Have the tenant keep bundles for so many days; None keeps them for ever."""
    assert api.patch("/v1/tenant/settings", {"bundle_retention_days": days}).status_code == 200


def make_due(owner: Api, engine: Engine, record: dict[str, Any]) -> None:
    """Let a record's bundle be due."""
    keep_for(owner, 1)
    passed = "UPDATE records SET created_at = created_at - interval '2 days' WHERE id = :id"
    execute(engine, passed, id=uuid_of(record["id"]))
