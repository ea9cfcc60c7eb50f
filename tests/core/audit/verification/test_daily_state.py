"""When every chain was verified last: known under a seal, whatever the job's row says."""

from datetime import datetime

import pytest
import structlog

from app.core.jobs import stuck_jobs
from app.core.verification import daily, sealed_notes
from app.core.verification import jobs as verification
from app.core.verification.verifier import Verifier
from app.database import database_now
from app.lib.crypto.sealing import MasterKeys
from tests.support.evidence.chains import FLIP_BUNDLES, Place, daily_run
from tests.support.secrets import MASTER_KEYS

LONG_AGO = "2026-01-01T00:00:00.000000Z"


def since(place: Place, keys: MasterKeys = MASTER_KEYS) -> datetime | None:
    with place.world.database.across_tenants() as session:
        return daily.unverified_since(session, keys)


def now(place: Place) -> datetime:
    with place.world.database.across_tenants() as session:
        return database_now(session)


def note(place: Place, at: str, keys: MasterKeys = MASTER_KEYS) -> None:
    """Put a note in its place that says since when the chains are not verified again."""
    with place.world.database.across_tenants() as session:
        sealed_notes.write(session, keys, daily.KIND, {"since": at})


def test_a_run_that_ended_says_when_it_began(place: Place) -> None:
    before = now(place)
    assert (since(place) or before) < before
    report = daily_run(place)
    assert report["log"] == "intact"
    began = datetime.fromisoformat(str(report["began"]))
    assert before <= began <= now(place)
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
    with place.world.database.across_tenants() as session:
        verification.enqueue_daily(session)
    place.owner(attack)
    assert since(place) == datetime.fromisoformat(LONG_AGO)
    with place.world.database.across_tenants() as session:
        stuck_jobs.free_stuck(session)
    daily_run(place)
    verified = since(place)
    assert verified is not None
    assert now(place) - verified < daily.OVERDUE


def test_a_note_that_this_service_did_not_seal_is_ignored(place: Place) -> None:
    place_of_none = since(place)
    note(place, "2099-01-01T00:00:00.000000Z")
    assert since(place) == place_of_none, "of a clock that was wrong"
    note(place, LONG_AGO, MasterKeys.parse(MasterKeys.generate()))
    assert since(place) == place_of_none
    place.owner("UPDATE sealed_notes SET sealed = '\\x00'")
    assert since(place) == place_of_none


def test_a_run_that_could_not_read_the_log_is_none(place: Place) -> None:
    before = since(place)
    place.owner(FLIP_BUNDLES)
    assert daily_run(place)["log"] == "log-damaged"
    assert since(place) == before


def test_a_run_that_left_a_chain_out_is_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = since(place)
    monkeypatch.setattr(Verifier, "check_chain", None)
    assert daily_run(place)["failed"] == 1
    assert since(place) == before


def test_a_run_that_found_a_break_is_one(place: Place) -> None:
    place.owner.cut(8)
    assert daily_run(place)["broken"] == 1
    assert now(place) - (since(place) or now(place)) < daily.MISSED


def test_a_run_that_was_missed_is_made_up_for_once_an_hour(place: Place) -> None:
    def is_asked_for() -> bool:
        with place.world.database.across_tenants() as session:
            return daily.watch(session, MASTER_KEYS)

    daily_run(place)
    assert not is_asked_for()
    note(place, LONG_AGO)
    with structlog.testing.capture_logs() as lines:
        assert not is_asked_for(), "one has just ended, and came to nothing"
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("audit_not_verified", "error")
    ]
    place.owner("UPDATE jobs SET finished_at = now() - interval '61 minutes'")
    assert is_asked_for()
    daily_run(place)
    assert not is_asked_for()
