"""Faults while an export is made: workers killed at any step, objects lost, a damaged log."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.core.exports import exports, parts
from app.core.jobs import leases
from app.core.jobs.steps import Errand
from app.evidence.timestamps import read_certificates
from app.ledger.policy import Policy
from app.settings import Settings
from dev.tsa import KeyType, TimestampAuthority
from jobs.durable import run_job
from tests.support.callers.making import uuid_of
from tests.support.database.databases import execute
from tests.support.evidence.anchoring import put_line, put_stamp
from tests.support.evidence.exporting import (
    PATH,
    Exporter,
    job_of,
    lines_of,
    verified,
)
from tests.support.evidence.logs import Killed
from tests.support.evidence.objects import names_in, sweep, work_off
from tests.support.evidence.packing import set_up_as
from tests.support.evidence.witnesses import Witness

RECORDS = 11


def killed_step(exporter: Exporter, export: dict[str, Any], *, talked: bool) -> None:
    """Begin a step as a worker does that is killed: before its talk, or before its commit."""
    job_id = job_of(export)
    due = """UPDATE jobs SET run_at = clock_timestamp(), claims_lost = 0,
                             locked_until = CASE WHEN locked_until IS NULL THEN NULL
                                                 ELSE clock_timestamp() - interval '1 hour' END
              WHERE id = :id"""
    execute(exporter.owner, due, id=job_id)
    runtime, tenant = exporter.runtime, exporter.tenant.id
    with runtime.database.across_tenants() as session:
        job = leases.claim(session, tenant, job_id)
    assert job is not None
    with runtime.database.transaction(tenant) as session:
        errand = run_job.KINDS[job.kind](runtime)(session, tenant, job)
        assert isinstance(errand, Errand)
    if talked:
        written = errand.talk()
        with suppress(Killed), runtime.database.transaction(tenant) as session:
            errand.record(session, written)
            raise Killed
    execute(exporter.owner, due, id=job_id)


def test_an_export_whose_every_step_was_killed_first_is_whole(
    exporter: Exporter, tmp_path: Path
) -> None:
    since = exporter.now()
    made = exporter.records(RECORDS)
    export = exporter.order(since).json

    for turn in range(100):
        if exporter.read(export)["state"] != "making":
            break
        killed_step(exporter, export, talked=turn % 2 == 0)
        exporter.step(export)
    file = exporter.file(export)

    assert exporter.read(export)["state"] == "ready"
    assert [line["id"] for line in lines_of(file) if line["type"] == "record"] == [
        each["id"] for each in made
    ]
    assert verified(tmp_path, file).code == 0


def test_parts_go_to_the_object_store_and_expire_there(
    exporter: Exporter, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1500)
    folder = tmp_path / "objects"
    with set_up_as(exporter, settings, blob_url=f"file://{folder}") as other:
        since = other.now()
        other.records(RECORDS)
        ordered = other.order(since).json
        for _ in range(5):
            other.step(ordered)
        killed_step(other, ordered, talked=True)
        export = other.work(ordered)
        file = other.file(export)
        assert verified(tmp_path, file).code == 0
        kept = [name for name in names_in(folder) if ".export_parts." in name]
        assert len(kept) > 2
        assert not any(b"sha256" in (folder / name).read_bytes() for name in kept)

        other.api().delete(f"{PATH}/{export['id']}")
        exports.expire(other.runtime.database, other.runtime.settings, lambda: True)
        work_off(other.runtime, other.tenant.id)

        # What the killed step wrote, no row has named: that is the sweep's.
        left = {name for name in names_in(folder) if ".export_parts." in name}
        assert 0 < len(left) < len(kept)
        assert sweep(other.runtime) == len(left)
        assert not any(".export_parts." in name for name in names_in(folder))


def test_an_export_is_made_while_the_object_store_is_away(
    exporter: Exporter, settings: Settings, tmp_path: Path
) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_bytes(b"")
    with set_up_as(exporter, settings, blob_url=f"file://{nowhere}") as other:
        since = other.now()
        other.records(2)

        export = other.made(since)

        assert verified(tmp_path, other.file(export)).code == 0


def test_a_record_without_its_leaf_is_reported_and_nothing_is_signed(
    exporter: Exporter, admin_engine: Engine
) -> None:
    since = exporter.now()
    record = exporter.records(3)[1]
    gone = "DELETE FROM log_leaves WHERE data = convert_to(:d, 'UTF8')"
    leaf = f'{{"bundle_sha256":"{record["bundle"]["sha256"]}","type":"record"}}'
    kept = "CREATE TABLE kept_leaves AS SELECT * FROM log_leaves"
    execute(admin_engine, kept)
    execute(admin_engine, gone, d=leaf)
    export = exporter.order(since).json

    found = exporter.work(export, steps=12)
    execute(admin_engine, "INSERT INTO log_leaves SELECT * FROM kept_leaves ON CONFLICT DO NOTHING")
    execute(admin_engine, "DROP TABLE kept_leaves")

    assert (found["state"], found["statement"]) == ("failed", None)
    assert record["id"] in found["error"]


def test_a_part_that_is_gone_ends_the_download_short(
    exporter: Exporter, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1500)
    since = exporter.now()
    exporter.records(RECORDS)
    export = exporter.made(since)
    lost = """DELETE FROM export_parts WHERE export_id = :id AND starts = (
        SELECT starts FROM export_parts WHERE export_id = :id ORDER BY starts OFFSET 2 LIMIT 1)"""
    execute(admin_engine, lost, id=uuid_of(export["id"]))

    answer = exporter.api().get(f"{PATH}/{export['id']}/export.ndjson")

    assert 0 < len(answer.data) < export["size"] == int(answer.headers["Content-Length"])


def test_an_export_has_the_timestamp_and_the_cosignatures_of_its_checkpoint(
    exporter: Exporter, settings: Settings, admin_engine: Engine, tmp_path: Path
) -> None:
    authority = TimestampAuthority(tmp_path, KeyType.P256)
    witness = Witness("one.test")
    text = f"witness w {witness.vkey}\nquorum w\n"
    roots = read_certificates(authority.ca_file.read_bytes())
    changed = {"tsa_ca_file": roots, "witness_policy": Policy.parse(text.encode())}
    with set_up_as(exporter, settings, **changed) as other:
        since = other.now()
        other.records(3)
        until = other.now()
        other.records(1)
        put_stamp(admin_engine, authority)
        put_line(admin_engine, witness)
        other.records(1)
        file = other.file(other.made(since, until))

    policy = tmp_path / "policy"
    log = exporter.api(None).get("/v1/log/key").data.decode().strip()
    policy.write_text(f"log {log}\n{text}")
    found = verified(tmp_path, file, "--policy", policy, "--tsa-ca", authority.ca_file)

    assert found.code == 0, found.text
    assert {found.verdicts[name] for name in ("the log's key", "cosignatures", "timestamp")} == {
        "VALID"
    }


def test_a_bundle_that_is_due_counts_as_expired_before_it_is_deleted(
    exporter: Exporter, admin_engine: Engine
) -> None:
    since = exporter.now()
    record = exporter.records(1)[0]
    due = "UPDATE tenants SET expired_through = clock_timestamp() WHERE id = :id"
    execute(admin_engine, due, id=exporter.tenant.id)

    export = exporter.made(since)

    line = next(each for each in lines_of(exporter.file(export)) if each["type"] == "record")
    assert (line["id"], line["content"]) == (record["id"], "expired")
