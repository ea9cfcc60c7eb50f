"""Evidence packs after `log succeed`: what others said of the log that ended is not thrown away."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.core import signing_keys
from app.core.log import succession
from app.core.packs import building
from app.core.signing_keys import Purpose
from app.settings import Settings
from dev.tsa import TimestampAuthority
from tests.support.database.databases import execute
from tests.support.evidence.anchoring import put_line, put_stamp
from tests.support.evidence.packing import Packer, files_in, set_up_as, stored
from tests.support.evidence.verifying import Answer
from tests.support.evidence.verifying import answer as verified
from tests.support.evidence.witnesses import Witness
from tests.support.secrets import MASTER_KEYS


def succeed(own: Packer) -> None:
    succession.succeed(own.log, MASTER_KEYS, force=True)
    own.log.run()


def anchor_of(pack: bytes) -> Any:
    return json.loads(files_in(pack)["anchor.json"])


def _log_keys(own: Packer) -> set[str]:
    """Return the published verifier keys of logs."""
    keys = own.api().get("/.well-known/jwks.json").json["keys"]
    return {key["vkey"] for key in keys if "vkey" in key}


def _verified(pack: bytes, policy: str, authority: TimestampAuthority, folder: Path) -> Answer:
    """Verify a pack strictly, by the files that an auditor would have."""
    (folder / "pack.zip").write_bytes(pack)
    (folder / "key.pem").write_bytes(files_in(pack)["pack-key.pem"])
    (folder / "policy").write_text(policy)
    options = ("--key", folder / "key.pem", "--policy", folder / "policy", "--strict")
    return verified(folder / "pack.zip", *options, "--tsa-ca", authority.ca_file)


def test_a_pack_stays_while_the_log_that_ended_is_vouched_for_better(
    own: Packer,
    log_owner: Engine,
    authority: TimestampAuthority,
    witness: Witness,
    tmp_path: Path,
) -> None:
    record = own.record()
    response = put_stamp(log_owner, authority)
    put_line(log_owner, witness)
    before = own.built(record)
    (old,) = _log_keys(own)
    succeed(own)
    answer = own.ask(record)
    assert (answer.data, answer.headers["x-service-evidence"]) == (before, "current")
    own.record()
    put_stamp(log_owner, authority)
    answer = own.ask(record)
    assert (answer.data, answer.headers["x-service-evidence"]) == (before, "current")
    assert len(own.jobs()) == 1, "nothing is built in vain"

    # It is checked with the key of the log that ended, which is still published.
    assert anchor_of(before)["vkey"] == old in _log_keys(own)
    assert own.api().get("/v1/log/key").text.strip() != old
    policy = f"log {old}\nwitness w {witness.vkey}\nquorum w\n"
    found = _verified(before, policy, authority, tmp_path)
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert files_in(before)["checkpoint.tsr"] == response

    own.record()
    put_stamp(log_owner, authority)
    put_line(log_owner, witness)
    assert own.ask(record).headers["x-service-evidence"] == "outdated", "the successor's is as good"
    own.work()
    after = own.ask(record)
    assert after.headers["x-service-evidence"] == "current"
    assert anchor_of(after.data)["vkey"] != old
    assert anchor_of(after.data)["timestamp"] is not None


def test_a_pack_without_other_evidence_is_made_anew_in_the_successor(own: Packer) -> None:
    record = own.record()
    before = own.built(record)
    succeed(own)
    assert own.ask(record).headers["x-service-evidence"] == "outdated"
    own.work()
    after = own.ask(record).data
    assert anchor_of(after)["vkey"] != anchor_of(before)["vkey"]


def test_it_stays_after_a_rotation_and_a_release_since_it_cannot_be_made_again(
    own: Packer,
    log_owner: Engine,
    authority: TimestampAuthority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = own.record()
    put_stamp(log_owner, authority)
    before = own.built(record)
    succeed(own)
    monkeypatch.setattr(building, "VERSION", "9.9.9")
    with own.runtime.database.across_tenants() as session:
        signing_keys.replace(session, MASTER_KEYS, Purpose.BUNDLE)
    answer = own.ask(record)
    assert (answer.data, answer.headers["x-service-evidence"]) == (before, "current")


@pytest.mark.parametrize("lost", ["trust", "stamp"])
def test_what_does_not_vouch_for_it_any_more_keeps_no_pack(
    own: Packer,
    own_settings: Settings,
    log_owner: Engine,
    authority: TimestampAuthority,
    lost: str,
) -> None:
    record = own.record()
    put_stamp(log_owner, authority)
    own.built(record)
    succeed(own)
    if lost == "stamp":
        execute(log_owner, "UPDATE checkpoint_timestamps SET response = '\\x00'")
    with set_up_as(
        own, own_settings, tsa_ca_file=() if lost == "trust" else own_settings.tsa_ca_file
    ) as other:
        assert other.ask(record).headers["x-service-evidence"] == "outdated"
        other.work()
        assert "checkpoint.tsr" not in files_in(other.ask(record).data)
    assert [each[0] for each in stored(log_owner, record)] == [True, False]


def test_a_stamp_that_came_after_the_pack_was_made_does_not_keep_it(
    own: Packer, log_owner: Engine, authority: TimestampAuthority
) -> None:
    record = own.record()
    own.built(record)
    put_stamp(log_owner, authority)
    succeed(own)
    assert own.ask(record).headers["x-service-evidence"] == "outdated"
