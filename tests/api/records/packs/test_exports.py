"""Downloads of a pack: audit entries, replacement, expiry, damage."""

import json
from collections.abc import Callable
from itertools import islice

import pytest
from sqlalchemy import Engine

from app.core.packs import building, store
from app.lib.crypto.sealing import MasterKeys
from app.settings import Settings
from tests.support.callers.making import refused, token_to
from tests.support.database.databases import execute
from tests.support.evidence.packing import Packer, parts_of, path_of, record_id, set_up_as, stored
from tests.support.secrets import MASTER_KEYS_SETTING


def exports(packer: Packer) -> list[tuple[str, str]]:
    """Return the callers that downloaded packs, by the audit chain, oldest first."""
    listed = packer.api().get("/v1/audit?action=evidence.export&order=asc&limit=200").json["data"]
    return [(entry["actor"]["type"], entry["actor"]["id"]) for entry in listed]


def test_each_caller_that_downloads_a_pack_is_audited_once(
    packer: Packer, mint: Callable[..., str]
) -> None:
    record = packer.record()
    token, _ = token_to(packer.api(), record)
    key = mint("read")
    packer.ask(record)
    packer.work()
    assert exports(packer) == [], "no pack was downloaded"
    etag = packer.api().request("HEAD", path_of(record)).headers["ETag"]
    assert packer.ask(record, **{"If-None-Match": etag}).status_code == 304
    packer.ask(record, Range="bytes=999999999-")
    assert exports(packer) == [], "no byte was downloaded"
    for _ in range(2):
        packer.ask(record, key, Range="bytes=5-9")
        packer.ask(record, key)
        packer.ask(record, None, **{"x-share-token": token})
    packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    for _ in range(2):
        packer.ask(record, None)
        packer.ask(record, None, **{"x-share-token": token})
        packer.ask(record, key)
    key_id = packer.api(key).get("/v1/keys/self").json["id"]
    (link,) = packer.api().get(f"/v1/records/{record['id']}/share-links").json["data"]
    assert exports(packer) == [
        ("key", key_id),
        ("link", link["id"]),
        ("system", "record-service"),
    ]
    entry = packer.api().get("/v1/audit?action=evidence.export&order=asc&limit=1").json["data"][0]
    assert entry["target"] == {"type": "record", "id": record["id"]}
    assert entry["details"]["sha256"] == etag.strip('"')
    assert packer.api().get("/v1/audit/verify").status_code == 200


def test_a_download_goes_on_while_a_better_pack_takes_its_place(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    before = packer.built(record)
    answer = packer.api().get(path_of(record), buffered=False)
    parts = parts_of(answer)
    begun = next(parts)
    monkeypatch.setattr(building, "VERSION", "9.9.9")
    packer.ask(record)
    packer.work()
    assert packer.ask(record).data != before
    assert begun + b"".join(parts) == before


def test_what_expires_under_way_is_cut_short(
    packer: Packer,
    admin_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    packer.built(record)
    named = {"X-Request-ID": "a-download"}
    parts = parts_of(packer.api().get(path_of(record), headers=named, buffered=False))
    next(parts)
    packer.api().patch("/v1/tenant/settings", {"bundle_retention_days": 1})
    execute(
        admin_engine,
        "UPDATE records SET created_at = created_at - interval '2 days' WHERE id = :id",
        id=record_id(record),
    )
    capsys.readouterr()
    assert list(parts) == [], "it ends short of its Content-Length"
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in said] == ["pack_deleted"]
    assert said[0]["request_id"] == "a-download"
    assert packer.ask(record).status_code == 410


FLIP = """
UPDATE evidence_pack_parts SET bytes = set_byte(bytes, 99, get_byte(bytes, 99) # 1)
 WHERE starts = :number * 20000 AND pack_id IN (SELECT id FROM evidence_packs WHERE record_id = :id)
"""
SWAP = """
UPDATE evidence_pack_parts AS p SET bytes = other.bytes FROM evidence_pack_parts AS other
 WHERE other.pack_id = p.pack_id AND p.starts + other.starts = 20000
   AND p.pack_id IN (SELECT id FROM evidence_packs WHERE record_id = :id)
"""


def test_a_part_that_was_changed_is_never_given_out(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    data = packer.built(record)
    execute(admin_engine, FLIP, id=record_id(record), number=0)
    answer = packer.ask(record)
    refused(answer, 503, "evidence-pack-unreadable")
    assert answer.headers["Retry-After"] == "1"
    assert stored(admin_engine, record) == [], "the next request gets a whole one"
    assert packer.built(record) == data
    execute(admin_engine, SWAP, id=record_id(record))
    refused(packer.ask(record), 503, "evidence-pack-unreadable")
    assert packer.built(record) == data
    execute(admin_engine, FLIP, id=record_id(record), number=2)
    parts = parts_of(packer.api().get(path_of(record), buffered=False))
    assert next(parts) + next(parts) == data[:40_000]
    assert list(parts) == [], "it ends short of its Content-Length"
    assert packer.built(record) == data


DROP = """
DELETE FROM evidence_pack_parts
 WHERE starts = :number * 20000 AND pack_id IN (SELECT id FROM evidence_packs WHERE record_id = :id)
"""


def test_a_pack_without_one_of_its_parts_ends_there_and_is_made_anew(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    data = packer.built(record)
    execute(admin_engine, DROP, id=record_id(record), number=1)
    parts = parts_of(packer.api().get(path_of(record), buffered=False))
    assert list(islice(parts, 10)) == [data[:20_000]], "it ends short of its Content-Length"
    assert stored(admin_engine, record) == []
    assert packer.built(record) == data
    execute(admin_engine, DROP, id=record_id(record), number=1)
    refused(packer.ask(record, Range="bytes=20000-"), 503, "evidence-pack-unreadable")
    assert packer.built(record) == data


def test_a_pack_of_another_record_does_not_open(packer: Packer, admin_engine: Engine) -> None:
    record, other = packer.record(), packer.record()
    packer.built(other)
    execute(
        admin_engine,
        "UPDATE evidence_packs SET record_id = :id WHERE record_id = :other",
        id=record_id(record),
        other=record_id(other),
    )
    refused(packer.ask(record), 503, "evidence-pack-unreadable")


@pytest.mark.usefixtures("forgotten")
def test_a_pack_is_given_out_also_where_the_keys_that_sign_do_not_open(
    packer: Packer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a new master key, when the one before was dropped too soon."""
    record, without = packer.record(), packer.record()
    old, new = MASTER_KEYS_SETTING, MasterKeys.generate()
    with set_up_as(packer, settings, master_keys=MasterKeys.parse(f"{new},{old}")) as both:
        data = both.built(record)
    with set_up_as(packer, settings, master_keys=MasterKeys.parse(new)) as later:
        answer = later.ask(record)
        assert (answer.data, answer.headers["x-service-evidence"]) == (data, "current")
        monkeypatch.setattr(building, "VERSION", "9.9.9")
        assert later.ask(record).headers["x-service-evidence"] == "outdated"
        assert later.ask(without).status_code == 202
        for job in later.work()[-2:]:
            assert (job.status, job.error) == ("dead", building.NO_KEY)
        assert "MASTER_KEYS" in building.NO_KEY
        answer = later.ask(record)
        assert (answer.data, answer.headers["x-service-evidence"]) == (data, "outdated")
        refused(later.ask(without), 503, "evidence-pack-failed")


@pytest.mark.usefixtures("forgotten")
def test_a_part_whose_master_key_is_missing_is_kept_for_when_it_is_back(
    packer: Packer,
    settings: Settings,
    admin_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    data = packer.built(record)
    other = MasterKeys.generate()
    capsys.readouterr()
    with set_up_as(packer, settings, master_keys=MasterKeys.parse(other)) as without:
        answer = without.ask(record)
        problem = refused(answer, 503, "evidence-pack-unreadable")
        assert answer.headers["Retry-After"] == "60"
        assert "master key" in problem["detail"]
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (line,) = [each for each in said if each["event"] == "pack_without_key"]
        assert (line["level"], line["record"]) == ("error", record["id"])
    # A process with both, and a part that only the other key sealed, in mid-download.
    sealed = MasterKeys.parse(other).seal(b"x", "anywhere")
    execute(admin_engine, PUT, id=record_id(record), number=2, bytes=sealed)
    parts = parts_of(packer.api().get(path_of(record), buffered=False))
    assert next(parts) + next(parts) == data[:40_000]
    assert list(parts) == [], "it ends short of its Content-Length"
    assert [each[0] for each in stored(admin_engine, record)] == [False]
    assert packer.ask(record, Range="bytes=0-9").data == data[:10]


PUT = """
UPDATE evidence_pack_parts SET bytes = :bytes
 WHERE starts = :number * 20000 AND pack_id IN (SELECT id FROM evidence_packs WHERE record_id = :id)
"""
