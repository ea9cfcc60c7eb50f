"""Old entries of an audit chain lie in the object store, and the chain is read through to them."""

import json
from pathlib import Path
from typing import Any

import pytest
from psycopg.errors import DataException

from app.core.erasure import archiving, moving
from app.database import cursor
from jobs.durable import run_job
from tests.jobs.objects.worlds import World, brought_back, taken_away
from tests.support.callers.making import make_agent
from tests.support.evidence.objects import move, names_in, sweep

ENTRIES = 4


def archived(here: World) -> dict[str, Any]:
    """Make a chain of some fourteen entries, and archive its old part."""
    for number in range(12):
        made = make_agent(here.api(), name=f"agent {number}")
        here.api().patch(f"/v1/agents/{made['id']}", {"name": f"renamed {number}"})
    for number in range(8):
        here.api().post("/v1/keys", {"name": f"key {number}", "role": "read"})
    with here.runtime.database.across_tenants() as session:
        archiving.enqueue_due(session, 0)
    ((job_id,),) = here.rows(
        "SELECT id FROM jobs WHERE kind = 'archive_audit' AND tenant_id = :t", t=here.tenant.id
    )
    run_job.work_on(here.runtime, here.tenant.id, job_id)
    ((progress, status),) = here.rows("SELECT progress, status FROM jobs WHERE id = :i", i=job_id)
    assert status == "succeeded"
    return dict(json.loads(progress))


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "ENTRIES", ENTRIES)


def whole(here: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = here.api().get("/v1/audit?order=asc&limit=200").json["data"]
    return found


def exported(here: World) -> bytes:
    return bytes(here.api().get("/v1/audit", headers={"Accept": "application/x-ndjson"}).data)


def test_a_chain_reads_verifies_and_exports_through_its_archive(
    here: World, folder: Path, tmp_path: Path
) -> None:
    made = archived(here)
    assert made["entries"] >= ENTRIES
    empty = "SELECT count(*) FROM audit_entries WHERE tenant_id = :t AND body IS NULL"
    ((bodies,),) = here.rows(empty, t=here.tenant.id)
    assert bodies == made["entries"]
    segments = [name for name in names_in(folder) if ".audit_segments." in name]
    assert len(segments) == made["entries"] // ENTRIES

    entries = whole(here)
    assert [each["seq"] for each in entries] == [*range(1, len(entries) + 1)]
    assert [each["action"] for each in entries].count("audit.archive") == len(segments)
    assert len(here.api().get("/v1/audit?action=key.mint").json["data"]) >= 8
    assert here.api().get("/v1/audit/verify").json["status"] == "intact"
    file = tmp_path / "chain.ndjson"
    file.write_bytes(exported(here))
    assert len(file.read_bytes().splitlines()) == len(whole(here)) + 1

    move(here.runtime, moving.DATABASE)
    assert here.api().get("/v1/audit/verify").json["status"] == "intact"
    move(here.runtime, moving.OBJECTS)
    assert sweep(here.runtime) == 0
    assert whole(here)[: len(entries)] == entries


@pytest.mark.usefixtures("forgotten")
def test_a_lost_or_altered_segment_is_a_broken_chain_that_names_it(
    here: World, folder: Path
) -> None:
    archived(here)
    first, second = [name for name in names_in(folder) if ".audit_segments." in name][:2]
    kept = (folder / second).read_bytes()
    (folder / second).write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    broken = here.api().get("/v1/audit/verify")
    assert (broken.status_code, broken.json["seq"]) == (409, ENTRIES + 1)
    named = f"the archived entries {ENTRIES + 1} to {2 * ENTRIES}"
    assert named in broken.json["detail"]
    (folder / second).write_bytes(kept)
    assert here.api().get("/v1/audit/verify").json["status"] == "intact"

    (folder / first).unlink()
    broken = here.api().get("/v1/audit/verify")
    assert (broken.json["seq"], broken.json["reason"]) == (1, "segment")
    assert here.api().get("/v1/audit?order=asc").json["seq"] == 1


@pytest.mark.usefixtures("forgotten")
def test_an_archived_entry_that_was_filed_under_something_else_is_a_break(here: World) -> None:
    archived(here)
    misfile = "UPDATE audit_entries SET action = 'harmless.thing'"
    second = "WHERE tenant_id = :t AND seq = 2 AND body IS NULL RETURNING seq"
    assert here.rows(f"{misfile} {second}", t=here.tenant.id) == [(2,)]
    broken = here.api().get("/v1/audit/verify").json
    assert (broken["seq"], broken["reason"]) == (2, "misfiled")
    assert "harmless.thing" in broken["found"]


def test_while_the_store_is_away_the_archive_waits_and_its_readers_too(
    here: World, folder: Path
) -> None:
    archived(here)
    taken_away(folder)
    assert here.api().get("/v1/audit/verify").status_code == 503
    assert here.api().get("/v1/agents").status_code == 200
    brought_back(folder)
    assert here.api().get("/v1/audit/verify").json["status"] == "intact"


def test_the_service_s_role_can_empty_no_entry_that_no_segment_holds(here: World) -> None:
    archived(here)
    newest = "SELECT max(seq) FROM audit_entries WHERE tenant_id = :t"
    ((last,),) = here.rows(newest, t=here.tenant.id)
    call = "SELECT archive_audit_entries(%s, %s, %s, sha256('x'))"
    with (
        pytest.raises(DataException, match="no segment holds"),
        here.runtime.database.transaction(here.tenant.id) as session,
    ):
        cursor(session).execute(call, (here.tenant.id, last, last))
