"""When every chain was verified last: known under a seal, whatever the job's row says."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import structlog

from app.clock import rfc3339
from app.core.jobs import leases, steps, stuck_jobs
from app.core.jobs.steps import Errand, Failed, Step
from app.core.verification import daily, daily_state
from app.core.verification import jobs as verification
from app.database import database_now
from app.lib import canonical_json
from app.lib.crypto.sealing import MasterKeys
from app.models import Job
from tests.support.evidence.chains import Place
from tests.support.secrets import MASTER_KEYS

LONG_AGO = "2026-01-01T00:00:00.000000Z"


def step(place: Place) -> tuple[Job, Step]:
    """Do one step of the daily run; return the job as it was claimed, and what it came to."""
    with place.world.database.across_tenants() as session:
        asked = verification.enqueue_daily(session)
        job = leases.claim(session, asked.tenant_id, asked.id)
        assert job is not None
        errand = daily.step(place.verifier, session, job)
    assert isinstance(errand, Errand)
    said = errand.talk()
    with place.world.database.across_tenants() as session:
        came_to = errand.record(session, said)
        assert not isinstance(came_to, Failed)
        assert steps.advance(session, job, came_to)
    return job, came_to


def run(place: Place) -> dict[str, Any]:
    """Do a whole run; return what it shows in the end."""
    while True:
        _, came_to = step(place)
        if came_to.cursor is None:
            return dict(came_to.progress)


def since(place: Place, keys: MasterKeys = MASTER_KEYS) -> datetime | None:
    with place.world.database.across_tenants() as session:
        return daily_state.unverified_since(session, keys)


def now(place: Place) -> datetime:
    with place.world.database.across_tenants() as session:
        return database_now(session)


def note(place: Place, at: str, keys: MasterKeys = MASTER_KEYS) -> None:
    """Put a note in its place that says since when the chains are not verified again."""
    sealed = keys.seal(canonical_json.dumps({"since": at}), "sealed_notes/verify_audit")
    place.owner(
        "INSERT INTO sealed_notes VALUES ('verify_audit', :sealed)"
        " ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed",
        sealed=sealed,
    )


@dataclass(frozen=True)
class Row:
    """What a job's row said of a run, to be written there again."""

    cursor: str
    progress: str

    @classmethod
    def read(cls, place: Place) -> "Row":
        """Keep what the row says now."""
        query = "SELECT {} FROM jobs WHERE dedupe_key = 'all'"
        return cls(*(place.owner.scalar(query.format(name)) for name in ("cursor", "progress")))

    def put_back(self, place: Place) -> None:
        """Have the run that is asked for next go on from here."""
        with place.world.database.across_tenants() as session:
            verification.enqueue_daily(session)
        place.owner(
            "UPDATE jobs SET cursor = :cursor, progress = :progress",
            cursor=self.cursor,
            progress=self.progress,
        )


def test_a_run_that_ended_says_when_it_began(place: Place) -> None:
    before = now(place)
    assert (since(place) or before) < before
    _, first = step(place)
    after = now(place)
    assert run(place)["log"] == "intact"
    assert since(place) == datetime.fromisoformat(first.progress["began"])
    assert before <= datetime.fromisoformat(first.progress["began"]) <= after


def test_a_row_that_is_put_back_makes_no_chain_verified_anew(place: Place) -> None:
    step(place)
    kept = Row.read(place)
    run(place)
    noted = since(place)
    place.owner.cut(8)
    for _ in range(2):
        kept.put_back(place)
        run(place)
        assert since(place) == noted, "what was known then, and nothing of what came after"
    assert run(place)["broken"] == 1
    assert (since(place) or now(place)) > (noted or now(place))


def test_a_run_that_goes_on_after_days_counts_from_its_beginning(place: Place) -> None:
    job, came_to = step(place)
    began = now(place) - timedelta(days=3)
    progress = dict(came_to.progress) | {"began": rfc3339(began)}
    kept = daily_state.step(MASTER_KEYS, job, UUID(int=0), progress)
    Row(str(kept.cursor), json.dumps(progress)).put_back(place)
    with structlog.testing.capture_logs() as lines:
        assert run(place)["log"] == "intact"
    assert not lines
    assert since(place) == began


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE jobs SET finished_at = '2099-01-01', status = 'succeeded'",
        "UPDATE jobs SET finished_at = NULL, status = 'queued', run_at = '2099-01-01'",
        "UPDATE jobs SET finished_at = now(), status = 'succeeded', progress = '{}'",
        "DELETE FROM jobs",
    ],
)
def test_no_row_of_a_job_says_that_a_run_ended(place: Place, attack: str) -> None:
    note(place, LONG_AGO)
    step(place)
    place.owner(attack)
    assert since(place) == datetime.fromisoformat(LONG_AGO)
    with place.world.database.across_tenants() as session:
        stuck_jobs.free_stuck(session)
    run(place)
    verified = since(place)
    assert verified is not None
    assert now(place) - verified < daily_state.OVERDUE


def test_a_note_that_this_service_did_not_seal_is_ignored(place: Place) -> None:
    place_of_none = since(place)
    note(place, "2099-01-01T00:00:00.000000Z")
    assert since(place) == place_of_none, "of a clock that was wrong"
    note(place, LONG_AGO, MasterKeys.parse(MasterKeys.generate()))
    assert since(place) == place_of_none
    place.owner("UPDATE sealed_notes SET sealed = '\\x00'")
    assert since(place) == place_of_none


@pytest.mark.parametrize(
    "written",
    [
        "f" * 32,
        "7",
        "nonsense",
        "",
        MASTER_KEYS.seal(b'{"after":"ff","progress":{}}', "jobs/another/verify_audit").hex(),
        MasterKeys.parse(MasterKeys.generate()).seal(b"{}", "of a dropped key").hex(),
    ],
    ids=["hex", "short", "nonsense", "empty", "of another job", "of a dropped key"],
)
def test_a_run_whose_place_was_changed_begins_anew(place: Place, written: str) -> None:
    step(place)
    place.owner("UPDATE jobs SET cursor = :cursor", cursor=written)
    with structlog.testing.capture_logs() as lines:
        _, came_to = step(place)
    said = [(line["event"], line["log_level"]) for line in lines]
    assert said == [("verification_restarted", "error")]
    assert came_to.cursor is not None, "the log is read first"
    assert run(place)["tenants"] == 1


@pytest.mark.parametrize("written", ["nonsense", '{"tenants":7,"failed":-1}'])
def test_what_a_run_shows_of_itself_is_not_what_it_goes_by(place: Place, written: str) -> None:
    step(place)
    place.owner("UPDATE jobs SET progress = :progress", progress=written)
    assert run(place)["tenants"] == 1


def test_a_run_that_could_not_read_the_log_is_none(place: Place) -> None:
    before = since(place)
    place.owner(
        "UPDATE log_tiles SET data = set_byte(data, 9, get_byte(data, 9) # 1) WHERE level = -1"
    )
    assert run(place)["log"] == "log-damaged"
    assert since(place) == before


def test_a_run_that_left_a_chain_out_is_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = since(place)
    monkeypatch.setattr(daily, "_entries_of", lambda *_: _FAILED)
    assert run(place)["failed"] == 1
    assert since(place) == before


_FAILED = daily._Bad.FAILED


def test_a_run_that_found_a_break_is_one(place: Place) -> None:
    place.owner.cut(8)
    assert run(place)["broken"] == 1
    assert now(place) - (since(place) or now(place)) < daily_state.MISSED


def test_a_run_that_was_missed_is_made_up_for_once_an_hour(place: Place) -> None:
    def is_asked_for() -> bool:
        with place.world.database.across_tenants() as session:
            return daily_state.watch(session, MASTER_KEYS)

    run(place)
    assert not is_asked_for()
    note(place, LONG_AGO)
    with structlog.testing.capture_logs() as lines:
        assert not is_asked_for(), "one has just ended, and came to nothing"
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("audit_not_verified", "error")
    ]
    place.owner("UPDATE jobs SET finished_at = now() - interval '61 minutes'")
    assert is_asked_for()
    run(place)
    assert not is_asked_for()
