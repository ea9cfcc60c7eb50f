"""The keys that sign bundles: one is current, all verify, and each chain knows of a change."""

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import text

from app.core import signing_keys
from app.core.signing_keys import Purpose
from app.database import Database
from app.lib.sealing import MasterKeys
from app.lib.signing import PublicKey
from app.settings import Settings
from tests.api.making import make_record, make_session
from tests.conftest import Api, FreshTenant


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
        retired, current = signing_keys.rotate(opened, settings.master_keys)
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
