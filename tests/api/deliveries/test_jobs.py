"""Jobs over HTTP: listed, read, and moved from one state to another, or refused."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app import ids
from app.core.jobs import job_queue, leases, steps
from app.core.jobs.steps import Step
from app.core.replay.replay_deliveries import Pace, Plan
from app.core.replay.replay_selection import Selection, Wanted
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import refused, uuid_of

# Of a bulk replay to no webhook.
REPLAY = Plan(Selection(None, Wanted(), datetime(2026, 1, 31, tzinfo=UTC)), (), Pace()).to_args()
NOTHING_LEFT = json.dumps({"left": [], "canary": None, "steps": 1, "forgiven": 0})


class Queue:
    """Makes jobs and moves them as a worker does."""

    def __init__(self, database: Database, tenant: FreshTenant) -> None:
        self._database = database
        self._tenant_id = tenant.id

    def add(self, kind: str = "bulk_replay") -> str:
        with self._database.transaction(self._tenant_id) as session:
            job = job_queue.enqueue(
                session,
                self._tenant_id,
                kind=kind,
                args=REPLAY,
                progress={"selected": 3, "sent": 0},
            )
        return ids.text("job", job.id)

    def work(self, job: str, *, cursor: str | None = None, error: str | None = None) -> None:
        """Claim a job and let its step go on at `cursor`, succeed (None), or fail for good."""
        with self._database.transaction(self._tenant_id) as session:
            claimed = leases.claim(session, self._tenant_id, uuid_of(job))
            assert claimed is not None
            if error is None:
                assert steps.advance(session, claimed, Step(cursor, {"selected": 3, "skipped": 1}))
            else:
                assert steps.fail(session, claimed, error, for_good=True)


@pytest.fixture
def queue(database: Database, tenant: FreshTenant) -> Queue:
    return Queue(database, tenant)


def read(api: Api, job: str) -> dict[str, Any]:
    return api.found(f"/v1/jobs/{job}")


def test_a_job_shows_what_it_does_and_how_far_it_is(api: ApiOf, queue: Queue) -> None:
    job = queue.add()
    new = read(api(), job)
    assert (new["kind"], new["args"], new["status"]) == ("bulk_replay", REPLAY, "queued")
    assert (new["progress"], new["error"]) == ({"selected": 3, "sent": 0}, None)
    assert new["finished_at"] is None

    queue.work(job, cursor=NOTHING_LEFT)
    assert read(api(), job)["status"] == "running"
    assert read(api(), job)["progress"]["skipped"] == 1

    queue.work(job)
    done = read(api(), job)
    assert done["status"] == "succeeded"
    assert done["finished_at"] >= done["created_at"]


def test_jobs_are_listed_newest_first_and_filtered(api: ApiOf, queue: Queue) -> None:
    made = [queue.add("a"), queue.add("b"), queue.add("a"), queue.add("b")]
    queue.work(made[0])

    def listed(query: str) -> list[str]:
        return [job["id"] for job in api().get(f"/v1/jobs?{query}").json["data"]]

    assert listed("") == made[::-1]
    assert listed("kind=a") == [made[2], made[0]]
    assert listed("status=succeeded") == [made[0]]
    assert listed("kind=b&status=succeeded") == []
    first = api().get("/v1/jobs?limit=3").json
    assert listed(f"limit=3&cursor={first['next_cursor']}") == [made[0]]


def test_a_dead_job_says_why_and_is_tried_again(api: ApiOf, queue: Queue) -> None:
    job = queue.add()
    queue.work(job, error="The webhook was disabled.")
    dead = read(api(), job)
    assert (dead["status"], dead["error"]) == ("dead", "The webhook was disabled.")

    again = api().post(f"/v1/jobs/{job}/retry")

    assert again.status_code == 200
    assert (again.json["status"], again.json["error"]) == ("queued", None)
    assert again.json == read(api(), job)
    queue.work(job)
    assert read(api(), job)["status"] == "succeeded"


def test_a_move_that_does_not_fit_the_state_is_refused(api: ApiOf, queue: Queue) -> None:
    queued, dead, cancelled, succeeded = (queue.add() for _ in range(4))
    queue.work(dead, error="It cannot be.")
    api().post(f"/v1/jobs/{cancelled}/cancel")
    queue.work(succeeded)

    for job, fits in ((queued, "cancel"), (dead, "retry"), (cancelled, "resume"), (succeeded, "")):
        before = read(api(), job)
        for move in {"retry", "cancel", "resume"} - {fits}:
            refused(api().post(f"/v1/jobs/{job}/{move}"), 409, "job-state")
        assert read(api(), job) == before
