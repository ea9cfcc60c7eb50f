"""The keys that sign bundles: one is current, all verify, and each chain knows of a change."""

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import text

from app.core import signing_keys
from app.core.log.sequencer import Sequencer
from app.core.signing_keys import Purpose
from app.database import Database
from app.errors import Conflict, ServiceError
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.signing import PublicKey
from app.settings import Settings
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import make_record, make_session


def test_after_a_rotation_new_bundles_have_the_new_key_and_old_ones_still_verify(
    api: Callable[..., Api],
    database: Database,
    settings: Settings,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
) -> None:
    session = make_session(api())
    before = make_record(api(), session["id"])
    with database.across_tenants() as opened:
        rotation = signing_keys.rotate(opened, settings.master_keys)
    retired, current = rotation.retired, rotation.current
    after = make_record(api(), session["id"])
    assert before["bundle"]["key_id"] == retired
    assert after["bundle"]["key_id"] == current
    published = {key["kid"]: key for key in api(None).get("/.well-known/jwks.json").json["keys"]}
    for made in (before, after):
        raw = api().get(f"/v1/records/{made['id']}/bundle").data
        x = published[made["bundle"]["key_id"]]["x"]
        key = PublicKey(base64.urlsafe_b64decode(x + "="))
        assert key.verifies(base64.b64decode(made["bundle"]["signature"]), raw)
    for each in (tenant, other_tenant):
        entry = api(each.root_key).get("/v1/audit?action=signing_key.rotate").json["data"][0]
        assert entry["target"] == {"type": "signing_key", "id": current}
        assert entry["details"] == {"retired": retired}


def test_of_many_who_ask_for_the_first_key_one_makes_it(fresh_database: Database) -> None:
    master_keys = MasterKeys.parse(MasterKeys.generate())

    def ask(_: int) -> str:
        with fresh_database.across_tenants() as session:
            return signing_keys.current(session, master_keys, Purpose.BUNDLE).public.id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    with fresh_database.across_tenants() as session:
        assert session.scalar(text("SELECT count(*) FROM signing_keys")) == 1


def test_a_rotation_that_is_undone_leaves_the_key_and_no_entry(
    api: Callable[..., Api], database: Database, settings: Settings, tenant: FreshTenant
) -> None:
    make_record(api(), make_session(api())["id"])
    with database.transaction(tenant.id) as session:
        before = signing_keys.current(session, settings.master_keys, Purpose.BUNDLE).public.id
    with database.across_tenants() as session:
        signing_keys.rotate(session, settings.master_keys)
        session.rollback()
    with database.transaction(tenant.id) as session:
        now = signing_keys.current(session, settings.master_keys, Purpose.BUNDLE).public.id
    assert now == before
    assert api().get("/v1/audit?action=signing_key.rotate").json["data"] == []


def test_a_revoked_key_signs_no_more_and_every_chain_has_an_entry(
    api: Callable[..., Api],
    database: Database,
    settings: Settings,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
) -> None:
    session = make_session(api())
    revoked = make_record(api(), session["id"])["bundle"]["key_id"]
    with database.across_tenants() as opened:
        new = signing_keys.revoke(opened, settings.master_keys, revoked, "it leaked").current
    assert make_record(api(), session["id"])["bundle"]["key_id"] == new
    keys = {each["kid"]: each for each in api(None).get("/.well-known/jwks.json").json["keys"]}
    told = keys[revoked]
    assert told["revocation_reason"] == "it leaked"
    assert told["revoked_at"] <= told["retired_at"]
    assert [keys[new][name] for name in ("revoked_at", "revocation_reason")] == [None, None]
    for each in (tenant, other_tenant):
        entry = api(each.root_key).get("/v1/audit?action=signing_key.revoke").json["data"][0]
        assert entry["target"] == {"type": "signing_key", "id": revoked}
        assert entry["details"] == {
            "revoked_at": told["revoked_at"],
            "reason": "it leaked",
            "successor": new,
        }


def test_what_cannot_be_revoked_is_refused(
    api: Callable[..., Api], database: Database, settings: Settings, log: Sequencer
) -> None:
    key_id = make_record(api(), make_session(api())["id"])["bundle"]["key_id"]
    log.run()
    keys = api(None).get("/.well-known/jwks.json").json["keys"]
    (of_log,) = [key["kid"] for key in keys if key["purpose"] == "log" and not key["retired_at"]]
    soon = datetime.now(UTC) + timedelta(days=1)
    for named, since, why in (
        ("0" * 16, None, "There is no signing key"),
        (of_log, None, "is the key of a log"),
        (key_id, soon, "not later than now"),
        (key_id, soon - timedelta(days=9999), "was made at"),
    ):
        with database.across_tenants() as opened, pytest.raises(ServiceError, match=why):
            signing_keys.revoke(opened, settings.master_keys, named, "why not", since)
    with database.across_tenants() as opened:
        signing_keys.rotate(opened, settings.master_keys)
    with database.across_tenants() as opened:
        revoked = signing_keys.revoke(opened, settings.master_keys, key_id, "old")
    assert (revoked.current, revoked.untold) == (None, {})
    with database.across_tenants() as opened, pytest.raises(Conflict, match="already"):
        signing_keys.revoke(opened, settings.master_keys, key_id, "again")


@pytest.mark.parametrize("act", ["rotate", "revoke"])
def test_no_bundle_is_later_than_the_end_of_its_key(
    api: Callable[..., Api], database: Database, settings: Settings, act: str
) -> None:
    session = make_session(api())
    key_id = make_record(api(), session["id"])["bundle"]["key_id"]
    with database.across_tenants() as opened:
        if act == "rotate":
            signing_keys.rotate(opened, settings.master_keys)
        else:
            signing_keys.revoke(opened, settings.master_keys, key_id, "it leaked")
        # Not committed yet: this one still reads the old key.
        last = make_record(api(), session["id"])
    assert last["bundle"]["key_id"] == key_id
    keys = {each["kid"]: each for each in api(None).get("/.well-known/jwks.json").json["keys"]}
    assert last["created_at"] < keys[key_id]["retired_at"]


def test_an_operator_revokes_a_key_with_a_reason_and_on_purpose(
    api: Callable[..., Api], manage: Callable[..., tuple[int, str]]
) -> None:
    manage_keys = partial(manage, "signing-key")
    key_id = make_record(api(), make_session(api())["id"])["bundle"]["key_id"]
    for wrong in ([], ["--reason", " "], ["--reason", "a\nb"], ["--reason", "x", "--since", "now"]):
        assert manage_keys("revoke", key_id, "--yes", *wrong)[0] == 2
    status, said = manage_keys("revoke", key_id, "--reason", "it leaked")
    assert (status, "--yes" in said) == (1, True)
    (line,) = [line for line in manage_keys("list")[1].splitlines() if key_id in line]
    assert "revoked" not in line
    status, said = manage_keys("revoke", key_id, "--reason", "it leaked", "--yes")
    assert (status, said.split()[:2]) == (0, ["revoked:", key_id])
    (line,) = [line for line in manage_keys("list")[1].splitlines() if key_id in line]
    assert line.endswith(": it leaked")
    status, said = manage_keys("revoke", key_id, "--reason", "it leaked", "--yes")
    assert (status, "already" in said) == (1, True)
