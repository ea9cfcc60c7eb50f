"""What comes in lies in the object store, sealed, and is read from there in every form."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from app import ids
from app.console.frame import lists
from app.core.blobs import rows, store
from app.core.blobs.store import Blob
from app.core.erasure import erasing, moving
from app.core.packs import store as packs
from app.core.records import bundles, statements
from app.errors import Unavailable
from app.lib.objects.opening import Away, opened
from jobs.actors import ticks
from tests.jobs.objects.worlds import World, brought_back, taken_away
from tests.support.callers.console import signed_in
from tests.support.callers.making import make_session, token_to
from tests.support.database.storing import index_words
from tests.support.evidence.objects import move, names_in, sweep, work_off
from tests.support.workers.expiring import keep_for

SECRET = "Refunded order 4711 to Ada"


def test_a_bundle_is_an_object_and_read_as_before(here: World, folder: Path) -> None:
    record = here.record(content={"said": SECRET})
    assert here.lies(record) == (False, True)
    (name,) = names_in(folder)
    assert SECRET.encode() not in (folder / name).read_bytes()

    here.log.run()
    bundle = here.bundle(record)
    assert bundle.headers["ETag"] == f'"{record["bundle"]["sha256"]}"'
    assert SECRET.encode() in bundle.data
    for form in ("prov.json", "otlp-logs.json", "otlp-traces.json"):
        assert here.api().get(f"/v1/records/{record['id']}/{form}").status_code == 200
    with_content = here.api().get("/v1/records?include=content").json["data"]
    assert SECRET in str(with_content)
    for _ in ("from the tail", "from the index"):
        found = here.api().get("/v1/records?q=ada").json["data"]
        assert [each["id"] for each in found] == [record["id"]]
        index_words(here.runtime.database, here.runtime.settings, here.tenant.id)


def test_a_folder_that_cannot_even_be_looked_at_is_away(tmp_path: Path) -> None:
    # As a mount that has gone stale: the system answers neither yes nor no.
    away = opened((tmp_path / ("x" * 300)).as_uri(), 1)
    for ask in (
        lambda: away.put("a/b/c", b""),
        lambda: away.get("a/b/c"),
        lambda: away.has("a/b/c"),
        lambda: away.delete(["a/b/c"]),
        lambda: list(away.names("")),
    ):
        with pytest.raises(Away):
            ask()


def test_a_batch_is_in_the_store_too_with_and_without_a_key(here: World) -> None:
    session = make_session(here.api())["id"]
    body = {"records": [_new(session, n) for n in range(5)]}
    plain = here.api().post("/v1/records/batch", body).json["data"]
    once = {"headers": {"Idempotency-Key": uuid4().hex}}
    keyed = here.api().post("/v1/records/batch", body, **once).json["data"]
    assert {here.lies(each) for each in [*plain, *keyed]} == {(False, True)}
    assert here.api().post("/v1/records/batch", body, **once).json["data"] == keyed


def _new(session: str, number: int) -> dict[str, Any]:
    return {"session_id": session, "kind": "tool.call", "title": "t", "content": {"n": number}}


def test_packs_of_records_and_sessions_are_built_from_objects_and_are_objects(
    here: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "PART_BYTES", 4096)
    session = make_session(here.api())["id"]
    record = here.api().post("/v1/records", _new(session, 1)).json
    here.log.run()
    pack = here.packer.built(record)
    kept = [name for name in names_in(folder) if ".evidence_pack_parts." in name]
    assert len(kept) > 1
    assert zipfile.ZipFile(io.BytesIO(pack)).testzip() is None
    ranged = here.packer.ask(record, Range="bytes=5000-9999")
    assert (ranged.status_code, ranged.data) == (206, pack[5000:10000])

    here.packer.record()
    here.api().post(f"/v1/sessions/{session}/complete", {"outcome": "succeeded"})
    statements.seal_due(here.runtime.database, here.runtime.settings.master_keys, float("inf"))
    here.log.run()
    path, at_once = f"/v1/sessions/{session}/evidence.zip", {"Prefer": "wait=0"}
    here.api().get(path, headers=at_once)
    here.packer.work("session_pack")
    answer = here.api().get(path, headers=at_once)
    assert answer.status_code == 200
    assert zipfile.ZipFile(io.BytesIO(answer.data)).testzip() is None
    assert len([name for name in names_in(folder) if ".evidence_pack_parts." in name]) > len(kept)


def test_while_the_store_is_away_records_come_in_and_its_readers_are_told_to_come_back(
    here: World, folder: Path
) -> None:
    kept = here.record()
    taken_away(folder)
    waiting = here.record()
    assert here.lies(waiting) == (True, True)
    assert here.bundle(waiting).status_code == 200
    answer = here.bundle(kept)
    assert (answer.status_code, answer.json["detail"][:16]) == (503, "The object store")
    assert int(answer.headers["Retry-After"]) > 0
    assert here.api().get(f"/v1/records/{kept['id']}").status_code == 200

    brought_back(folder)
    assert here.bundle(kept).status_code == 200
    raw = here.bundle(waiting).data
    ticks.tend_objects(here.runtime)
    assert move(here.runtime, moving.WAITING)["moved"] >= 1
    assert here.lies(waiting) == (False, True)
    assert here.bundle(waiting).data == raw


def test_expiry_is_proven_by_the_object_s_absence_and_a_hold_keeps_it(
    here: World, folder: Path
) -> None:
    due, held = here.record(), here.record()
    hold = here.api().post("/v1/holds", {"reason": "r", "record_id": held["id"]}).json
    for record in (due, held):
        here.expirer.age(record, days=9)
    keep_for(here.api(), 1)
    assert here.expirer.run() == {"expired": 1}
    assert here.bundle(due).status_code == 410

    taken_away(folder)
    ticks.tend_objects(here.runtime)
    job = "SELECT FROM jobs WHERE kind = 'erase_objects' AND tenant_id = :t AND finished_at IS NULL"
    assert len(here.rows(job, t=here.tenant.id)) == 1
    assert len(here.rows("SELECT FROM dead_blobs WHERE tenant_id = :t", t=here.tenant.id)) == 1
    brought_back(folder)
    assert work_off(here.runtime, here.tenant.id) == {"erased": 1, "bundles": 1}
    (left,) = names_in(folder)
    assert ids.parse("rec", held["id"]).hex in left  # type: ignore[union-attr]
    entry = here.api().get("/v1/audit?order=desc&limit=1").json["data"][0]
    assert (entry["action"], entry["details"]) == ("bundles.erase", {"erased": 1, "bundles": 1})

    here.api().delete(f"/v1/holds/{hold['id']}")
    here.expirer.run_released(hold)
    work_off(here.runtime, here.tenant.id)
    assert names_in(folder) == []


def test_what_stays_of_a_bundle_for_backups_goes_with_it(here: World, folder: Path) -> None:
    record = here.record()
    owner = ids.read("rec", record["id"])
    item = store.Item("bundles", here.tenant.id, owner, 0, b"\1" + bytes(40))
    (stowed,) = store.stow(store.of(here.runtime.settings.blob_url), [item])
    assert stowed.blob is not None
    with here.runtime.database.transaction(here.tenant.id) as session:
        rows.retire(session, Blob(stowed.blob, "bundles", here.tenant.id, owner))
    here.expirer.age(record, days=9)
    keep_for(here.api(), 1)
    assert here.expirer.run() == {"expired": 1}
    work_off(here.runtime, here.tenant.id)
    assert names_in(folder) == []


def test_a_bundle_that_goes_while_it_is_moved_leaves_no_object(
    here: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.record()
    move(here.runtime, moving.DATABASE)
    carried = moving._carried

    def overtaken(*args: Any, **options: Any) -> Any:
        done = carried(*args, **options)
        with here.runtime.database.across_tenants() as session:
            session.execute(text("DELETE FROM bundles"))
        return done

    monkeypatch.setattr(moving, "_carried", overtaken)
    assert move(here.runtime, moving.OBJECTS)["moved"] == 0
    assert names_in(folder) != []
    work_off(here.runtime, here.tenant.id)
    assert names_in(folder) == []


def test_the_sweep_takes_what_no_row_ever_named_and_nothing_else(here: World, folder: Path) -> None:
    record = here.record()
    blobs = store.of(here.runtime.settings.blob_url)
    item = store.Item("bundles", here.tenant.id, ids.new(), 0, b"\1" + bytes(40))
    store.stow(blobs, [item])
    (folder / "000000" / "000").mkdir(parents=True)
    (folder / "000000" / "000" / "notes").write_bytes(b"somebody else's")
    with here.runtime.database.across_tenants() as session:
        erasing.enqueue_sweep(session)
    assert len(names_in(folder)) == 3
    assert sweep(here.runtime) == 1
    assert {name.rpartition("/")[2] for name in names_in(folder)} >= {"notes"}
    assert here.bundle(record).status_code == 200
    # The next one goes on behind the last name.
    assert sweep(here.runtime) == 0


def test_what_a_store_took_without_saying_so_is_swept_before_its_bytes_are_moved(
    here: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.BlobStore.put

    def unheard(self: store.BlobStore, blobs: Any) -> bool:
        put(self, blobs)
        return False

    with monkeypatch.context() as patched:
        patched.setattr(store.BlobStore, "put", unheard)
        record = here.record()
    assert (here.lies(record), len(names_in(folder))) == ((True, True), 1)
    # The sweep passes here once: what it leaves lies for ever.
    assert sweep(here.runtime) == 1
    move(here.runtime, moving.WAITING)
    assert here.lies(record) == (False, True)
    assert len(names_in(folder)) == 1
    assert here.bundle(record).status_code == 200


def test_what_a_killed_writer_left_goes_with_the_sweep(here: World, folder: Path) -> None:
    record = here.record()
    (name,) = names_in(folder)
    left, fresh = (Path(f"{folder / name}#{number}") for number in (1, 2))
    for each in (left, fresh):
        each.write_bytes(b"sealed")
    os.utime(left, (0, 0))
    assert sweep(here.runtime) == 0
    assert (left.exists(), fresh.exists()) == (False, True)
    assert here.bundle(record).status_code == 200


def test_an_opening_of_a_share_link_is_counted_once(here: World, folder: Path) -> None:
    record = here.record()
    links = f"/v1/records/{record['id']}/share-links"
    token, _ = token_to(here.api(), record)
    assert here.api(None).get(f"/s/{token}").status_code == 200
    assert here.api().get(links).json["data"][0]["opened"] == 1
    bundle = f"/v1/records/{record['id']}/bundle?share_token={token}"
    assert here.api(None).get(bundle).status_code == 200
    assert here.api().get(links).json["data"][0]["opened"] == 2


def test_a_file_of_many_parts_reads_objects_in_each(
    here: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_PART", 1)
    for _ in range(3):
        here.record(content={"said": SECRET})
    visitor = signed_in(here.api().application, here.tenant.root_key)
    lines = visitor.get("/console/records/all.csv?q=ada").text.splitlines()
    assert lines[-1] == "# complete: 3 rows"


def test_a_row_takes_no_name_of_an_object_that_the_sweep_may_have_taken(here: World) -> None:
    record = here.record()
    query = "SELECT blob, 'bundles', tenant_id, record_id FROM bundles WHERE record_id = :id"
    (row,) = here.rows(query, id=ids.parse("rec", record["id"]))
    old = Blob(*row)
    hours_ago = ids.earliest_at(ids.made_at(old.blob) - 2 * erasing.GRACE)
    with here.runtime.database.across_tenants() as session:
        assert rows.rename(session, [(old, hours_ago)]) == 0
    assert here.bundle(record).status_code == 200


def test_everything_moves_there_and_back_while_it_is_read(
    here: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "MOST_ROWS", 2)
    made = [here.record() for _ in range(5)]
    raw = {each["id"]: here.bundle(each).data for each in made}
    assert move(here.runtime, moving.DATABASE)["moved"] >= 5
    assert {here.lies(each) for each in made} == {(True, False)}
    assert {each["id"]: here.bundle(each).data for each in made} == raw
    # For backups the objects stay for a day.
    assert len(here.rows("SELECT FROM dead_blobs WHERE due_at > now()")) >= 5
    before = set(names_in(folder))
    assert move(here.runtime, moving.OBJECTS)["moved"] >= 5
    assert {here.lies(each) for each in made} == {(False, True)}
    assert set(names_in(folder)) > before
    assert {each["id"]: here.bundle(each).data for each in made} == raw


def test_an_object_that_is_lost_is_damage_and_not_expiry(here: World, folder: Path) -> None:
    record = here.record()
    for name in names_in(folder):
        (folder / name).unlink()
    listed = here.api().get("/v1/records?include=content").json["data"]
    assert [each.get("damaged") for each in listed] == [True]
    assert here.bundle(record).status_code == 500


def test_without_the_setting_what_lies_there_is_told_and_not_lost(here: World) -> None:
    record = here.record()
    with here.runtime.database.transaction(here.tenant.id) as session:
        record_id = ids.parse("rec", record["id"])
        assert record_id is not None
        keys = here.runtime.settings.master_keys
        with pytest.raises(Unavailable, match="BLOB_URL"):
            bundles.read(session, keys, here.tenant.id, record_id)
