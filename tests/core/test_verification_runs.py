"""When every chain was verified last: known under a seal, whatever the job's row says."""

from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog

from app.core import jobs
from app.core.audit.verification import daily, runs
from app.core.audit.verification import jobs as verification
from app.core.jobs import Errand, Failed, Step
from app.database import database_now
from app.lib import canonical_json
from app.lib.sealing import MasterKeys
from app.models import Job
from tests.chains import Place
from tests.secrets import MASTER_KEYS

LONG_AGO = "2026-01-01T00:00:00.000000Z"


def step(place: Place) -> tuple[Job, Step]:
    """Do one step of the daily run; return the job as it was claimed, and what it came to."""
    with place.world.database.across_tenants() as session:
        asked = verification.look(session)
        job = jobs.claim(session, asked.tenant_id, asked.id)
        assert job is not None
        errand = daily.step(place.verifier, session, job)
    assert isinstance(errand, Errand)
    said = errand.talk()
    with place.world.database.across_tenants() as session:
        came_to = errand.record(session, said)
        assert not isinstance(came_to, Failed)
        assert jobs.advance(session, job, came_to)
    return job, came_to


def run(place: Place) -> dict[str, Any]:
    """Do a whole run; return what it shows in the end."""
    while True:
        _, came_to = step(place)
        if came_to.cursor is None:
            return dict(came_to.progress)


def since(place: Place, keys: MasterKeys = MASTER_KEYS) -> datetime | None:
    with place.world.database.across_tenants() as session:
        return runs.unverified_since(session, keys)


def now(place: Place) -> datetime:
    with place.world.database.across_tenants() as session:
        return database_now(session)


def note(place: Place, at: str, keys: MasterKeys = MASTER_KEYS) -> None:
    """Put a note in its place that says when a run ended."""
    sealed = keys.seal(canonical_json.dumps({"ended": at}), "sealed_notes/verify_audit")
    place.owner(
        "INSERT INTO sealed_notes VALUES ('verify_audit', :sealed)"
        " ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed",
        sealed=sealed,
    )


def test_a_run_that_ended_says_when(place: Place) -> None:
    before = now(place)
    assert (since(place) or before) < before
    assert run(place)["log"] == "intact"
    assert before <= (since(place) or before - timedelta(days=1)) <= now(place)


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
        assert LONG_AGO in (runs.standing(session, MASTER_KEYS) or "")
    run(place)
    with place.world.database.across_tenants() as session:
        assert runs.standing(session, MASTER_KEYS) is None


def test_a_note_that_nobody_sealed_here_says_nothing(place: Place) -> None:
    place_of_none = since(place)
    note(place, "2099-01-01T00:00:00.000000Z")
    assert since(place) == place_of_none, "of a clock that was wrong"
    note(place, LONG_AGO, MasterKeys.parse(MasterKeys.generate()))
    assert since(place) == place_of_none
    place.owner("UPDATE sealed_notes SET sealed = '\\x00'")
    assert since(place) == place_of_none


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE jobs SET cursor = 'ffffffffffffffffffffffffffffffff'",
        "UPDATE jobs SET progress = replace(progress, '\"failed\"\\:0', '\"failed\"\\:-1')",
        "UPDATE jobs SET progress = '{}'",
        "UPDATE jobs SET progress = NULL",
        "UPDATE jobs SET progress = '{\"seal\"\\:7}'",
    ],
)
def test_a_run_that_was_changed_on_its_way_begins_anew(place: Place, attack: str) -> None:
    step(place)
    place.owner(attack)
    with structlog.testing.capture_logs() as lines:
        job, came_to = step(place)
    assert [line["event"] for line in lines] == ["verification_begun_anew"]
    assert came_to.cursor is not None, "the log is read first"
    assert run(place)["tenants"] == 1
    assert job.finished_at is None


def test_a_run_that_could_not_read_the_log_is_none(place: Place) -> None:
    before = since(place)
    place.owner("UPDATE log_tiles SET data = set_byte(data, 9, 0) WHERE level = -1")
    assert run(place)["log"] == "log-damaged"
    assert since(place) == before


def test_a_run_that_left_a_chain_out_is_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = since(place)
    monkeypatch.setattr(daily, "_verified", lambda _, tenants, __: ((t, _FAILED) for t in tenants))
    assert run(place)["failed"] == 1
    assert since(place) == before


_FAILED = daily._Bad.FAILED


def test_a_run_that_found_a_break_is_one(place: Place) -> None:
    place.owner.cut(8)
    assert run(place)["broken"] == 1
    assert now(place) - (since(place) or now(place)) < runs.MISSED


def test_a_run_that_was_missed_is_made_up_for_once_an_hour(place: Place) -> None:
    def is_asked_for() -> bool:
        with place.world.database.across_tenants() as session:
            return runs.watch(session, MASTER_KEYS)

    run(place)
    assert not is_asked_for()
    note(place, LONG_AGO)
    with structlog.testing.capture_logs() as lines:
        assert not is_asked_for(), "one has just ended, and came to nothing"
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("audit_not_verified", "error")
    ]
    for at in ("now() - interval '61 minutes'", "'2099-01-01'"):
        place.owner(f"UPDATE jobs SET finished_at = {at}")
        assert is_asked_for()
    run(place)
    assert not is_asked_for()
