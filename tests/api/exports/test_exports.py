"""Orders of period exports, what they list, and their lists."""

from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from app.clock import rfc3339
from app.core.exports import building, exports
from tests.support.callers.api import FreshTenant, Mint
from tests.support.callers.making import make_agent, make_session, uuid_of
from tests.support.database.databases import execute
from tests.support.database.storing import counted
from tests.support.evidence.exporting import PATH, Exporter, lines_of, verified
from tests.support.evidence.packing import record_id


def listed(lines: list[dict[str, Any]]) -> list[str]:
    return [line["id"] for line in lines if line["type"] == "record"]


def test_an_export_lists_every_record_of_its_period(
    exporter: Exporter, tmp_path: Path, mint: Mint
) -> None:
    exporter.records(2)
    since = exporter.now()
    made = exporter.records(7)
    until = exporter.now()
    exporter.records(2)

    export = exporter.made(since, until)
    file = exporter.file(export)
    keys = tmp_path / "keys.json"
    keys.write_bytes(exporter.api(None).get("/.well-known/jwks.json").data)
    found = verified(tmp_path, file, "--key", keys)

    assert listed(lines_of(file)) == [each["id"] for each in made]
    assert found.code == 0, found.text
    assert set(found.of("NOT CHECKED")) == {"the log's key"}
    assert (export["records"], export["size"]) == (7, len(file))
    assert export["sha256"] == sha256(file).hexdigest()
    assert export["statement"]["by_day"] == [{"day": rfc3339(since)[:10], "records": 7}]
    assert export["statement"]["leaves"]["outside"] == 2
    signed = exporter.api().get(f"{PATH}/{export['id']}/statement")
    assert lines_of(file)[-1]["statement"] == signed.json
    assert export["statement"]["key_id"] in signed.headers["x-service-bundle-signature"]


def test_an_export_of_one_agent_names_no_other(exporter: Exporter, tmp_path: Path) -> None:
    since = exporter.now()
    agent = make_agent(exporter.api(), name="mine")["id"]
    exporter.records(2)
    mine = exporter.records(3, make_session(exporter.api(), agent)["id"])

    export = exporter.made(since, agent_id=agent)
    file = exporter.file(export)
    found = verified(tmp_path, file)

    assert listed(lines_of(file)) == [each["id"] for each in mine]
    assert export["statement"]["by_agent"] == [{"agent_id": agent, "name": "mine", "records": 3}]
    assert found.code == 0, found.text
    assert export["statement"]["leaves"]["outside"] == 2


def test_an_empty_period_is_shown_to_be_empty(exporter: Exporter, tmp_path: Path) -> None:
    exporter.records(2)
    since = exporter.now()

    export = exporter.made(since)
    found = verified(tmp_path, exporter.file(export))

    assert (export["records"], export["statement"]["first_at"]) == (0, None)
    assert found.verdicts["other leaves"] == "VALID"
    assert found.code == 0, found.text


def test_a_sealed_session_is_held_to_the_records_that_are_listed(
    exporter: Exporter, tmp_path: Path, admin_engine: Any
) -> None:
    since = exporter.now()
    session = make_session(exporter.api(), title="sealed")["id"]
    made = exporter.records(5, session)
    exporter.seal(session)
    other = exporter.records(2)

    whole = exporter.file(exporter.made(since))
    execute(admin_engine, "DELETE FROM bundles WHERE record_id = :id", id=record_id(made[2]))
    execute(admin_engine, "DELETE FROM records WHERE id = :id", id=record_id(made[2]))
    lacking = exporter.file(exporter.made(since))

    assert len(listed(lines_of(whole))) == len(made) + len(other)
    found = verified(tmp_path, whole)
    assert found.code == 0, found.text
    assert "1 sealed sessions, each with all its records" in found.text
    found = verified(tmp_path, lacking)
    assert found.verdicts["sessions"] == "INVALID"
    assert f"{session} was sealed with 5 records, and 4 of them are listed" in found.text
    assert found.code == 1


def test_a_session_with_records_beyond_the_period_is_not_called_whole(
    exporter: Exporter, tmp_path: Path
) -> None:
    session = make_session(exporter.api())["id"]
    exporter.records(1, session)
    since = exporter.now()
    exporter.records(2, session)
    exporter.seal(session)

    found = verified(tmp_path, exporter.file(exporter.made(since)))

    assert (found.code, found.verdicts["sessions"]) == (0, "NOT CHECKED"), found.text


def test_an_expired_bundle_is_named_as_expired(
    exporter: Exporter, tmp_path: Path, api: Any, admin_engine: Any
) -> None:
    since = exporter.now()
    gone, kept = exporter.records(2)
    execute(admin_engine, "DELETE FROM bundles WHERE record_id = :id", id=record_id(gone))

    export = exporter.made(since)
    file = exporter.file(export)

    contents = {line["id"]: line["content"] for line in lines_of(file) if line["type"] == "record"}
    assert contents == {gone["id"]: "expired", kept["id"]: "stored"}
    assert export["statement"]["expired"] == 1
    assert verified(tmp_path, file).code == 0


def test_a_record_that_was_removed_is_a_leaf_that_no_line_explains(
    exporter: Exporter, tmp_path: Path, admin_engine: Any
) -> None:
    since = exporter.now()
    removed = exporter.records(3)[1]
    execute(admin_engine, "DELETE FROM bundles WHERE record_id = :id", id=record_id(removed))
    execute(admin_engine, "DELETE FROM records WHERE id = :id", id=record_id(removed))

    file = exporter.file(exporter.made(since))
    kept = tmp_path / "kept"
    kept.write_text(f"{removed['bundle']['sha256']}  {removed['id']}.json\n")
    found = verified(tmp_path, file, "--strict", "--kept", kept)

    assert found.verdicts["other leaves"] == "NOT CHECKED"
    assert "1 are records that are not listed" in found.text
    assert found.verdicts["kept"] == "INCOMPLETE"
    assert found.code == 1


def test_a_record_that_was_added_later_entered_the_log_late(
    exporter: Exporter, tmp_path: Path, admin_engine: Any
) -> None:
    day = timedelta(days=1)
    until = exporter.now() - day
    added = exporter.records(1)[0]
    # What its owner signed with the time of two days ago.
    moved = "UPDATE records SET created_at = :at WHERE id = :id"
    execute(admin_engine, moved, at=until - day / 2, id=record_id(added))

    file = exporter.file(exporter.made(until - day, until))
    found = verified(tmp_path, file)

    assert listed(lines_of(file)) == [added["id"]]
    assert found.verdicts["times"] == "NOT CHECKED"
    assert added["id"] in found.text


def test_records_of_other_tenants_are_counted_and_not_named(
    exporter: Exporter, tmp_path: Path, other_tenant: FreshTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = exporter.now()
    exporter.records(3)
    other_api = exporter.api(other_tenant.root_key)
    others = make_session(other_api)
    for _ in range(6):
        assert other_api.post(
            "/v1/records", {"session_id": others["id"], "kind": "k", "title": "t", "content": 1}
        ).json
    exporter.records(3)

    in_full = exporter.file(exporter.made(since))
    monkeypatch.setattr(building, "MOST_OTHERS", -1)
    monkeypatch.setattr(building, "WHOLE_BY", 0)
    folded = exporter.file(exporter.made(since))

    for file, words in ((in_full, "6 are records"), (folded, "by hashes alone")):
        found = verified(tmp_path, file)
        assert found.code == 0, found.text
        assert found.verdicts["other leaves"] == "NOT CHECKED"
        assert words in found.text
        assert len(listed(lines_of(file))) == 6
        assert others["id"].encode() not in file
    assert {line["type"] for line in lines_of(folded)} == {"header", "record", "fold", "statement"}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"until": "2026-01-01T00:00:00Z"}, "/until"),
        ({"until": "2999-01-01T00:00:00Z"}, "/until"),
        ({"since": "2001-01-01T00:00:00Z"}, "/since"),
    ],
)
def test_a_bad_period_is_refused_by_its_field(
    exporter: Exporter, change: dict[str, str], pointer: str
) -> None:
    body = {"since": "2026-01-01T00:00:00Z", "until": rfc3339(exporter.now())} | change

    answer = exporter.api().post(PATH, body)

    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json["errors"]] == [pointer]


def test_an_order_its_end_and_each_keys_first_download_are_audited(
    exporter: Exporter, mint: Mint
) -> None:
    export = exporter.made(exporter.now() - timedelta(hours=1))
    path = f"{PATH}/{export['id']}/export.ndjson"
    reader = exporter.api(mint(role="read"))

    for caller in (exporter.api(), exporter.api(), reader):
        assert caller.get(path).status_code == 200
    exporter.api().delete(f"{PATH}/{export['id']}")

    entries = exporter.api().get("/v1/audit?order=asc").json["data"]
    about = [each for each in entries if each["target"]["id"] == export["id"]]
    assert [each["action"] for each in about] == [
        "export.create",
        "export.complete",
        "export.download",
        "export.download",
        "export.delete",
    ]
    assert about[1]["details"]["sha256"] == export["sha256"]


def test_a_download_goes_on_where_it_broke_off(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.exports.parts.PART_BYTES", 1000)
    since = exporter.now()
    exporter.records(9)
    export = exporter.made(since)
    file = exporter.file(export)
    path = f"{PATH}/{export['id']}/export.ndjson"
    etag = f'"{export["sha256"]}"'

    for start, stop in ((0, 1), (999, 1001), (1500, len(file)), (len(file) - 1, len(file))):
        ranged = {"Range": f"bytes={start}-{stop - 1}", "If-Range": etag}
        answer = exporter.api().get(path, headers=ranged)
        assert (answer.status_code, answer.data) == (206, file[start:stop])
    beyond = exporter.api().get(path, headers={"Range": f"bytes={len(file)}-"})
    same = exporter.api().get(path, headers={"If-None-Match": etag})
    assert (beyond.status_code, same.status_code) == (416, 304)


def test_a_deleted_export_frees_its_bytes_and_keeps_what_was_signed(
    exporter: Exporter, tenant: FreshTenant
) -> None:
    database = exporter.runtime.database
    since = exporter.now()
    exporter.records(2)
    before = counted(database, tenant.id)
    export = exporter.made(since)
    made = counted(database, tenant.id)

    assert exporter.api().delete(f"{PATH}/{export['id']}").status_code == 204
    exports.expire(database, exporter.runtime.settings, lambda: True)

    assert made.bytes - before.bytes == export["size"]
    assert counted(database, tenant.id) == before
    after = exporter.read(export)
    assert (after["state"], after["download_url"]) == ("deleted", None)
    assert after["statement"] == export["statement"]
    gone = exporter.api().get(f"{PATH}/{export['id']}/export.ndjson")
    assert (gone.status_code, gone.json["type"].rsplit("/")[-1]) == (410, "export-gone")


def test_an_export_expires_after_its_days(exporter: Exporter, admin_engine: Any) -> None:
    old, young = (exporter.made(exporter.now() - timedelta(hours=1)) for _ in range(2))
    age = "UPDATE exports SET made_at = made_at - interval '30 days' WHERE id = :id"
    execute(admin_engine, age, id=uuid_of(old["id"]))

    exports.expire(exporter.runtime.database, exporter.runtime.settings, lambda: True)

    assert [exporter.read(each)["state"] for each in (old, young)] == ["deleted", "ready"]


def test_few_exports_are_made_at_a_time(exporter: Exporter) -> None:
    since = exporter.now() - timedelta(hours=1)

    answers = [exporter.order(since) for _ in range(exports.MOST_MAKING + 1)]

    assert [each.status_code for each in answers] == [202] * exports.MOST_MAKING + [409]
    assert answers[-1].json["type"].endswith("/problems/too-many-exports")


def test_an_export_beyond_the_storage_limit_fails_and_says_so(
    exporter: Exporter, tenant: FreshTenant, admin_engine: Any
) -> None:
    ordered = exporter.order(exporter.now() - timedelta(hours=1)).json
    full = """INSERT INTO stored_records (tenant_id, shard, records, bytes)
              VALUES (:tenant, 99, 0, :bytes)"""
    most = exporter.runtime.settings.tenant_stored_mib << 20
    execute(admin_engine, full, tenant=tenant.id, bytes=most)

    found = exporter.work(ordered)

    assert found["state"] == "failed"
    assert "TENANT_STORED_MIB" in found["error"]
