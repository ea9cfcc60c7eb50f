"""A signing key is revoked: what it signed counts only if others had seen it before."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from app.core import signing_keys
from app.core.log import succession
from app.evidence import timestamps
from dev.tsa import TimestampAuthority
from tests.jobs.packs.test_sealed_sessions import seal
from tests.support.callers.making import make_session, refused
from tests.support.database.databases import execute
from tests.support.evidence.anchoring import put_line, put_stamp
from tests.support.evidence.packing import AT_ONCE, Packer, files_in
from tests.support.evidence.verifying import Answer, answer
from tests.support.evidence.witnesses import Witness
from tests.support.faults import LONG_ENOUGH, until
from tests.support.secrets import MASTER_KEYS


def an_hour_older(owner: Engine) -> datetime:
    """Have the current key made an hour ago; return when. A timestamp has whole seconds."""
    earlier = "UPDATE signing_keys SET created_at = created_at - interval '1 hour'"
    with owner.begin() as connection:
        found = connection.scalar(
            text(f"{earlier} WHERE purpose = 'bundle' AND retired_at IS NULL RETURNING created_at")
        )
    assert isinstance(found, datetime)
    return found


def revoke(own: Packer, record: dict[str, Any], since: datetime | None = None) -> str | None:
    with own.runtime.database.across_tenants() as session:
        key_id = record["bundle"]["key_id"]
        return signing_keys.revoke(session, MASTER_KEYS, key_id, "it leaked", since).current


def checked(own: Packer, pack: bytes, folder: Path, authority: TimestampAuthority) -> Answer:
    """Check a pack as an auditor that trusts the authority alone."""
    (folder / "pack.zip").write_bytes(pack)
    (folder / "keys.json").write_bytes(own.api().get("/.well-known/jwks.json").data)
    key = own.api().get("/v1/log/key").text
    (folder / "policy").write_text(f"log {key}quorum none\n")
    options = ["--policy", folder / "policy", "--tsa-ca", authority.ca_file]
    return answer(folder / "pack.zip", "--key", folder / "keys.json", *options)


def test_a_pack_by_a_revoked_key_is_not_given_out_and_made_anew(
    own: Packer, log_owner: Engine, authority: TimestampAuthority, tmp_path: Path
) -> None:
    record = own.record()
    put_stamp(log_owner, authority)
    before = own.built(record)
    new = revoke(own, record)
    assert own.ask(record).status_code == 202
    own.work()
    taken = own.ask(record)
    assert taken.headers["x-service-evidence"] == "current"
    manifest = json.loads(files_in(taken.data)["manifest.json"])
    assert manifest["pack_key_id"] == new != record["bundle"]["key_id"]
    found = checked(own, taken.data, tmp_path, authority)
    assert (found.code, found.verdicts["time of bundle.sig"]) == (0, "VALID"), found.text
    kept = checked(own, before, tmp_path, authority)
    assert (kept.code, kept.verdicts["pack-key.pem"]) == (0, "NOT CHECKED"), kept.text


def test_a_record_without_a_stamp_from_before_its_key_was_revoked_verifies_no_more(
    own: Packer, log_owner: Engine, authority: TimestampAuthority, tmp_path: Path
) -> None:
    record = own.record()
    put_stamp(log_owner, authority)
    revoke(own, record, an_hour_older(log_owner))
    found = checked(own, own.built(record), tmp_path, authority)
    assert found.of("INVALID") == ["time of bundle.sig"], found.text
    assert "(it leaked)" in found.text


def test_a_pack_takes_what_others_saw_before_its_bundle_s_key_was_revoked(
    own: Packer,
    log_owner: Engine,
    authority: TimestampAuthority,
    witness: Witness,
    tmp_path: Path,
) -> None:
    record = own.record()
    seen = datetime.fromisoformat(timestamps.gen_time(put_stamp(log_owner, authority)))
    until(lambda: time.time() >= seen.timestamp() + 1, LONG_ENOUGH)
    own.record()
    put_stamp(log_owner, authority)
    put_line(log_owner, witness)
    later = own.built(record)
    assert json.loads(files_in(later)["anchor.json"])["cosignatures"], "what ranks best"
    an_hour_older(log_owner)
    revoke(own, record, seen)
    after = own.built(record)
    assert json.loads(files_in(after)["anchor.json"])["cosignatures"] == []
    found = checked(own, after, tmp_path, authority)
    assert (found.code, found.verdicts["time of bundle.sig"]) == (0, "VALID"), found.text
    assert checked(own, later, tmp_path, authority).of("INVALID") == ["time of bundle.sig"]


def test_a_pack_of_an_ended_log_stays_while_it_alone_shows_that_the_bundle_is_older(
    own: Packer, log_owner: Engine, authority: TimestampAuthority
) -> None:
    record = own.record()
    put_stamp(log_owner, authority)
    revoke(own, record)
    # A timestamp has whole seconds: the successor's must not look like one from before.
    revoked = time.time()
    until(lambda: time.time() >= revoked + 1, LONG_ENOUGH)
    before = own.built(record)
    succession.succeed(own.log, MASTER_KEYS, force=True)
    own.record()
    put_stamp(log_owner, authority)
    taken = own.ask(record)
    assert (taken.data, taken.headers["x-service-evidence"]) == (before, "current")
    assert len(own.jobs()) == 1, "nothing is built that would show less"


def test_a_pack_is_given_out_while_the_log_is_damaged_unless_its_key_is_revoked(
    own: Packer, log_owner: Engine
) -> None:
    """What a pack proves does not depend on what the database holds of the log now."""
    record = own.record()
    data = own.built(record)
    other, run = own.record(), make_session(own.api())
    seal(own, run)
    own.log.run()
    damage = "UPDATE checkpoints SET note = overlay(note placing '\\x00'::bytea from 1 for 1)"
    execute(log_owner, damage)
    found = own.ask(record)
    assert (found.status_code, found.data) == (200, data)
    refused(own.ask(other), 409, "log-damaged")
    of_run = own.api().get(f"/v1/sessions/{run['id']}/evidence.zip", headers=AT_ONCE)
    refused(of_run, 409, "log-damaged")
    assert len(own.jobs()) + len(own.jobs("session_pack")) == 1, "no job begins that must fail"
    revoke(own, record)
    refused(own.ask(record), 409, "log-damaged")
