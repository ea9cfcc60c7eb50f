"""Findings expire after FINDINGS_DAYS; their counts stay, and a hold keeps them."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from app import clock, ids
from app.core.jobs import leases, steps
from app.core.jobs.steps import Step
from app.core.records import finding_expiry
from app.database import Database
from app.models import Job
from app.settings import SettingError, Settings
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_finding, make_record
from tests.support.database.databases import execute

DAYS = 365


@pytest.fixture
def due(database: Database, tenant: FreshTenant) -> Any:
    """Return what runs the tenant's job to its end; None where there is none."""

    def run() -> dict[str, Any] | None:
        with database.across_tenants() as session:
            finding_expiry.enqueue_due(session, DAYS)
            job = (
                session.query(Job)
                .filter(
                    Job.tenant_id == tenant.id,
                    Job.kind == finding_expiry.KIND,
                    Job.finished_at.is_(None),
                )
                .one_or_none()
            )
        if job is None:
            return None
        while True:
            with database.transaction(tenant.id) as session:
                claimed = leases.claim(session, tenant.id, job.id)
                assert claimed is not None
                step: Step = finding_expiry.step(session, tenant.id, claimed)
                assert steps.advance(session, claimed, step)
            if step.cursor is None:
                return dict(step.progress)

    return run


def aged(owner: Engine, finding: dict[str, Any], days: int) -> str:
    """Let a finding be so old; return its id by then."""
    at = clock.now() - timedelta(days=days)
    moved = ids.new(at)
    execute(
        owner,
        "UPDATE findings SET id = :new, created_at = :at WHERE id = :id",
        new=moved,
        at=at,
        id=ids.parse("fnd", finding["id"]),
    )
    return ids.text("fnd", moved)


def test_old_findings_go_and_their_counts_stay(
    api: ApiOf,
    session: dict[str, Any],
    admin_engine: Engine,
    due: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding_expiry, "MOST", 2)
    made = [make_finding(api(), session["id"], severity=each) for each in ("low", "low", "high")]
    old = [aged(admin_engine, each, 400) for each in made]
    young = make_finding(api(), session["id"])
    assert due() == {"expired": 3}
    listed = api().get("/v1/findings").json["data"]
    assert [each["id"] for each in listed] == [young["id"]]
    assert api().get(f"/v1/findings/{old[0]}").status_code == 404
    (day,) = api().get("/v1/findings/expired").json["data"]
    assert day["day"] == (clock.now() - timedelta(days=400)).date().isoformat()
    assert (day["findings"], day["by_severity"]["low"], day["by_severity"]["high"]) == (3, 2, 1)
    assert api().get("/v1/findings/expired?rule=another").json["data"] == []
    entry = api().get("/v1/audit?order=desc&limit=1").json["data"][0]
    assert (entry["action"], entry["details"]["expired"]) == ("findings.expire", 3)
    assert due() is None


def test_a_hold_on_record_session_or_time_keeps_them(
    api: ApiOf, session: dict[str, Any], admin_engine: Engine, due: Any
) -> None:
    record = make_record(api(), session["id"])
    about = aged(admin_engine, make_finding(api(), session["id"], record_id=record["id"]), 400)
    gone = aged(admin_engine, make_finding(api(), session["id"]), 500)
    hold = api().post("/v1/holds", {"reason": "case", "record_id": record["id"]}).json
    assert due() == {"expired": 1}
    assert api().get(f"/v1/findings/{gone}").status_code == 404
    assert api().get(f"/v1/findings/{about}").status_code == 200
    # By the time of the record that it is about, too.
    api().delete(f"/v1/holds/{hold['id']}")
    times = {"since": "2020-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}
    hold = api().post("/v1/holds", {"reason": "case", **times}).json
    assert due() == {"expired": 0}
    api().delete(f"/v1/holds/{hold['id']}")
    assert due() == {"expired": 1}


def test_none_goes_before_the_history_that_its_event_is_written_from(settings: Settings) -> None:
    environ = {
        "DATABASE_URL": settings.database_url.replace("+psycopg", ""),
        "BASE_URL": settings.base_url,
        "MASTER_KEYS": "a" * 64,
        "FINDINGS_DAYS": "30",
    }
    with pytest.raises(SettingError, match="FINDINGS_DAYS is less than HISTORY_DAYS"):
        Settings.from_environ(environ)
