"""A pack is built again once there is better evidence."""

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.core import signing_keys
from app.core.packs import building
from app.core.signing_keys import Purpose
from app.database import Database
from app.evidence import timestamps
from app.evidence.timestamps import read_certificates
from app.ledger.policy import Policy
from app.settings import Settings
from dev.tsa import KeyType, TimestampAuthority
from tests.support.database.databases import execute
from tests.support.evidence.anchoring import put_line, put_stamp
from tests.support.evidence.packing import Packer, files_in, record_id, set_up_as, stored
from tests.support.evidence.verifying import answer
from tests.support.evidence.witnesses import Witness


def test_a_pack_is_made_anew_once_there_is_better_evidence(
    trusting: Packer, admin_engine: Engine, authority: TimestampAuthority
) -> None:
    packer = trusting
    record = packer.record()
    before = packer.built(record)
    packer.record()
    response = put_stamp(admin_engine, authority)
    answer = packer.ask(record)
    assert (answer.data, answer.headers["x-service-evidence"]) == (before, "outdated")
    assert len(packer.work()) == 2
    answer = packer.ask(record)
    assert answer.headers["x-service-evidence"] == "current"
    files = files_in(answer.data)
    assert files["checkpoint.tsr"] == response
    assert files["checkpoint"] != files_in(before)["checkpoint"]
    assert stored(admin_engine, record) == [(True, 1), (False, 1)]
    packer.record()
    put_stamp(admin_engine, authority)
    assert packer.ask(record).data == answer.data
    assert len(packer.jobs()) == 2


@pytest.mark.parametrize("digits", [0, 3, 6])
def test_a_pack_tells_the_time_with_the_digits_that_the_authority_sent(
    packer: Packer, settings: Settings, admin_engine: Engine, tmp_path: Path, digits: int
) -> None:
    authority = TimestampAuthority(
        tmp_path / "tsa", KeyType.P256, configured=f"clock_precision_digits = {digits}\n"
    )
    roots = read_certificates(authority.ca_file.read_bytes())
    with set_up_as(packer, settings, tsa_ca_file=roots) as trusting:
        record = trusting.record()
        response = put_stamp(admin_engine, authority)
        data = trusting.built(record)
    files = files_in(data)
    told = json.loads(files["anchor.json"])["timestamp"]["gen_time"]
    stamped = timestamps.gen_time(response)
    assert told == stamped
    assert f"the log had this leaf by {stamped}." in files["README.txt"].decode()
    (tmp_path / "pack.zip").write_bytes(data)
    found = answer(tmp_path / "pack.zip", "--tsa-ca", authority.ca_file)
    assert (found.code, found.verdicts["checkpoint.tsr"]) == (0, "VALID"), found.text


def test_a_witnessed_pack_is_made_anew_once_its_record_is_stamped_as_well(
    packer: Packer, settings: Settings, admin_engine: Engine, authority: TimestampAuthority
) -> None:
    roots = read_certificates(authority.ca_file.read_bytes())
    witness = Witness("one.test")
    policy = Policy.parse(f"witness w {witness.vkey}\nquorum w\n".encode())
    with set_up_as(packer, settings, tsa_ca_file=roots, witness_policy=policy) as both:
        record = both.record()
        put_line(admin_engine, witness)
        before = both.built(record)
        assert "checkpoint.tsr" not in files_in(before)
        both.record()
        put_stamp(admin_engine, authority)
        assert both.ask(record).headers["x-service-evidence"] == "current", "of another checkpoint"
        put_line(admin_engine, witness)
        answer = both.ask(record)
        assert (answer.data, answer.headers["x-service-evidence"]) == (before, "outdated")
        both.work()
        files = files_in(both.ask(record).data)
        assert "checkpoint.tsr" in files
        assert len(json.loads(files["anchor.json"])["cosignatures"]) == 1
        both.record()
        put_stamp(admin_engine, authority)
        put_line(admin_engine, witness)
        assert files_in(both.ask(record).data) == files, "and stays"
        delete = "DELETE FROM evidence_packs WHERE record_id = :id"
        execute(admin_engine, delete, id=record_id(record))
        assert files_in(both.built(record)) == files


def test_a_pack_is_made_anew_when_other_authorities_are_trusted(
    trusting: Packer,
    admin_engine: Engine,
    settings: Settings,
    authority: TimestampAuthority,
    tmp_path: Path,
) -> None:
    record = trusting.record()
    put_stamp(admin_engine, authority)
    assert "checkpoint.tsr" in files_in(trusting.built(record))
    another = read_certificates(TimestampAuthority(tmp_path, KeyType.P256).ca_file.read_bytes())
    with set_up_as(trusting, settings, tsa_ca_file=another) as packer:
        assert packer.ask(record).headers["x-service-evidence"] == "outdated"
        packer.work()
        answer = packer.ask(record)
    assert answer.headers["x-service-evidence"] == "current"
    assert "checkpoint.tsr" not in files_in(answer.data)


def test_a_pack_is_made_anew_when_other_witnesses_count(packer: Packer, settings: Settings) -> None:
    record = packer.record()
    packer.built(record)
    one, two = Witness("one.test"), Witness("two.test")
    lines = [f"witness {each.name} {each.vkey}" for each in (one, two)]

    def written(group: str) -> str:
        return "\n".join([*lines, f"group g {group} {one.name} {two.name}", "quorum g", ""])

    for group, current in (("any", False), ("any", True), ("all", False)):
        text = written(group)
        with set_up_as(packer, settings, witness_policy=Policy.parse(text.encode())) as other:
            said = other.ask(record).headers["x-service-evidence"]
            assert said == ("current" if current else "outdated")
            other.work()
    elsewhere = written("all").replace(str(one.vkey), f"{one.vkey} https://one.test")
    with set_up_as(packer, settings, witness_policy=Policy.parse(elsewhere.encode())) as other:
        assert other.ask(record).headers["x-service-evidence"] == "current", "the same, elsewhere"


def test_a_pack_is_made_anew_after_its_key_was_rotated(
    packer: Packer, database: Database, settings: Settings
) -> None:
    record = packer.record()
    before = files_in(packer.built(record))
    with database.across_tenants() as session:
        signing_keys.replace(session, settings.master_keys, Purpose.BUNDLE)
    assert packer.ask(record).headers["x-service-evidence"] == "outdated"
    packer.work()
    after = files_in(packer.ask(record).data)
    changed = {name for name, data in after.items() if data != before[name]}
    assert {"pack-key.pem", "SHA256SUMS.sig"} <= changed
    assert not changed & {"bundle.json", "bundle.sig", "public-key.pem", "anchor.json"}


def test_a_pack_is_made_anew_by_another_release(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    packer.built(record)
    monkeypatch.setattr(building, "VERSION", "9.9.9")
    assert packer.ask(record).headers["x-service-evidence"] == "outdated"
    packer.work()
    manifest = json.loads(files_in(packer.ask(record).data)["manifest.json"])
    assert manifest["release"] == "9.9.9"
