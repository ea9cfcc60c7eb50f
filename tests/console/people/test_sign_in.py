"""Signing in to the console, and keys there."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app import ids
from app.api.http.rate_limit import SIGN_INS
from app.core.keys import console_sessions, keys
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import ApiOf, FreshTenant, application
from tests.support.callers.console import Visitor, hidden, signed_in
from tests.support.callers.making import make_session, pin_of, revoke

PAGE = "/console/deliveries"


def is_signed_in(visitor: Visitor, **headers: str) -> bool:
    return visitor.get(PAGE, **headers).status_code == 200


def grow_old(engine: Engine, tenant: FreshTenant, column: str, by: timedelta) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(f"UPDATE console_sessions SET {column} = {column} - :by WHERE tenant_id = :t"),
            {"by": by, "t": tenant.id},
        )


def test_a_key_signs_in_and_its_cookie_is_out_of_reach_for_others(
    visitor: Visitor, tenant: FreshTenant
) -> None:
    led = visitor.get(f"{PAGE}?status=failed")
    assert led.status_code == 303
    page = visitor.get(led.headers["Location"])
    fields = hidden(page.text, "/console/sign-in")
    answer = visitor.sign_in(tenant.root_key, **fields)
    assert answer.headers["Location"] == f"{PAGE}?status=failed"
    (cookie,) = answer.headers.getlist("Set-Cookie")
    named, *attributes = cookie.split("; ")
    assert re.fullmatch(r"__Host-console_session=[A-Za-z0-9_-]{64}", named)
    assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=604800"} <= set(attributes)
    shown = visitor.get(PAGE)
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert shown.headers["Referrer-Policy"] == "same-origin"
    assert shown.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("key", ["", "nonsense", "svc_" + "A" * 40])
def test_a_key_that_is_not_good_gets_the_form_again_and_no_cookie(
    visitor: Visitor, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = visitor.sign_in(key, next=PAGE)
    said = capsys.readouterr().out
    assert ('"key_refused"' in said) == bool(key)
    assert not key or key not in said
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers
    assert hidden(answer.text, "/console/sign-in")["next"] == PAGE


@pytest.mark.parametrize("place", ["https://evil.test/", "//evil.test", "/console\\@evil", "/v1"])
def test_signing_in_leads_nowhere_else(visitor: Visitor, tenant: FreshTenant, place: str) -> None:
    assert visitor.sign_in(tenant.root_key, next=place).headers["Location"] == "/console"


def test_each_sign_in_ends_the_session_before_it(app: Flask, tenant: FreshTenant) -> None:
    first, thief = signed_in(app, tenant.root_key), Visitor(app)
    stolen = first.client.get_cookie("__Host-console_session", "records.test")
    assert stolen is not None
    thief.client.set_cookie(stolen.key, stolen.value, domain="records.test", secure=True)
    assert is_signed_in(thief)
    first.sign_in(tenant.root_key)
    assert is_signed_in(first)
    assert not is_signed_in(thief)


def test_signing_out_revoking_the_key_and_age_end_a_session(
    app: Flask, api: ApiOf, mint: Callable[..., str], tenant: FreshTenant, admin_engine: Engine
) -> None:
    keys = [mint("read") for _ in range(2)]
    visitors = [signed_in(app, key) for key in (*keys, tenant.root_key)]
    assert all(is_signed_in(visitor) for visitor in visitors)
    one, other, root = visitors
    one.send(PAGE, to="/console/sign-out")
    assert not is_signed_in(one)
    revoke(api, keys[1])
    assert not is_signed_in(other)
    grow_old(admin_engine, tenant, "expires_at", console_sessions.LONGEST)
    assert not is_signed_in(root)


def test_a_page_that_refreshes_itself_keeps_no_session_alive(
    admin: Visitor, tenant: FreshTenant, admin_engine: Engine, database: Database
) -> None:
    almost = console_sessions.IDLE - timedelta(minutes=5)
    grow_old(admin_engine, tenant, "last_used_at", almost)
    polled = {"Sec-Fetch-Dest": "empty"}
    assert is_signed_in(admin, **polled)
    assert is_signed_in(admin)
    grow_old(admin_engine, tenant, "last_used_at", almost)
    assert is_signed_in(admin, **polled)
    grow_old(admin_engine, tenant, "last_used_at", timedelta(minutes=5))
    assert admin.get(PAGE, **polled).status_code == 401
    with database.across_tenants() as session:
        assert console_sessions.forget_old(session) >= 1
        kept = text("SELECT count(*) FROM console_sessions WHERE tenant_id = :t")
        assert session.scalar(kept, {"t": tenant.id}) == 0


def test_attempts_to_sign_in_are_limited(settings: Settings) -> None:
    with application(settings) as own:
        visitor = Visitor(own)
        answers = [visitor.sign_in("nonsense").status_code for _ in range(SIGN_INS.limit + 1)]
    assert answers == [401] * SIGN_INS.limit + [429]


KEYS_PAGE = "/console/keys"
_TEXT = re.compile(r"svc_[0-9A-Za-z]{46}")


def minted(visitor: Visitor, **fields: str) -> str:
    answer = visitor.send(KEYS_PAGE, {"role": "admin", **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    (text,) = _TEXT.findall(answer.text)
    return str(text)


def test_a_key_is_shown_once_and_a_form_that_is_sent_twice_mints_one(
    admin: Visitor, api: ApiOf
) -> None:
    fields = {
        **admin.form(KEYS_PAGE),
        "name": "<b>\u202eauditor",
        "role": "read",
        "expires_in": "7d",
    }
    first, again = (admin.post(KEYS_PAGE, fields) for _ in range(2))
    (text,) = _TEXT.findall(first.text)
    assert _TEXT.findall(again.text) == [text]
    assert len(api().get("/v1/keys").json["data"]) == 2
    assert api(text).get("/v1/keys/self").json["expires_at"] is not None
    listed = admin.get(KEYS_PAGE).text
    assert "&lt;b&gt;\\u202eauditor" in listed
    assert text not in listed


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "required"),
        ({"name": "n", "pin.principal": "alice"}, "required"),
        ({"name": "n", "pin.agent_id": "agt_x", "pin.principal": "alice"}, "e-pin.agent_id"),
        ({"name": "n", "expires_in": "2d"}, "e-expires_in"),
    ],
)
def test_a_form_that_is_wrong_comes_back_with_its_input(
    admin: Visitor, api: ApiOf, fields: dict[str, str], said: str
) -> None:
    answer = admin.send(KEYS_PAGE, {"role": "write", **fields})
    assert answer.status_code == 422
    assert said in answer.text
    assert '<option value="write" selected>' in answer.text
    assert len(api().get("/v1/keys").json["data"]) == 1


def test_revoking_says_what_ends_with_it_and_ends_it(
    admin: Visitor, app: Flask, api: ApiOf
) -> None:
    parent = minted(admin, name="parent")
    child = minted(signed_in(app, parent), name="child")
    minted(signed_in(app, child), name="grandchild")
    key_id = api(parent).get("/v1/keys/self").json["id"]
    place = f"{KEYS_PAGE}/{key_id}"
    page = admin.get(place).text
    assert "2 keys that still work descend from it" in page
    assert "1 session of this console ends with it" in page
    form = admin.form(place, f"{place}/revoke")
    assert admin.post(f"{place}/revoke", {**form, "descendants": "true"}).status_code == 303
    assert "revoked" in admin.get(place).text
    assert [api(key).get("/v1/keys/self").status_code for key in (parent, child)] == [401, 401]
    actions = [each["action"] for each in api().get("/v1/audit").json["data"]]
    assert actions.count("key.revoke") == 3


def test_of_many_descendants_those_are_counted_that_still_work(
    admin: Visitor, api: ApiOf, tenant: FreshTenant, admin_engine: Engine
) -> None:
    parent = minted(admin, name="parent")
    key_id = api(parent).get("/v1/keys/self").json["id"]
    add = """
        INSERT INTO api_keys (tenant_id, id, name, role, digest, created_by, {column})
        SELECT tenant_id, gen_random_uuid(), 'old', role, sha256(('{column}' || n)::bytea), id,
               now()
          FROM api_keys, generate_series(1, :count) AS n WHERE id = :key"""
    with admin_engine.begin() as connection:
        for column in ("expires_at", "revoked_at"):
            values = {"key": ids.parse("key", key_id), "count": keys.MOST + 1}
            connection.execute(text(add.format(column=column)), values)
    assert api(parent).post("/v1/keys", {"name": "child", "role": "read"}).status_code == 201
    page = admin.get(f"{KEYS_PAGE}/{key_id}").text
    assert "1 key that still works descends from it" in page


def test_a_key_offers_no_revocation_of_itself_nor_of_what_it_descends_from(
    admin: Visitor, app: Flask, api: ApiOf
) -> None:
    child = minted(admin, name="child")
    holder = signed_in(app, child)
    own = api(child).get("/v1/keys/self").json
    for key_id in (own["id"], own["created_by"]):
        place = f"{KEYS_PAGE}/{key_id}"
        assert 'name="descendants"' not in holder.get(place).text
        form = {**holder.form(KEYS_PAGE), "descendants": "true"}
        assert holder.post(f"{place}/revoke", form).status_code == 409
    assert "cannot revoke itself" in holder.get(f"{KEYS_PAGE}/{own['id']}").text


def test_a_pinned_key_mints_and_sees_within_its_pin(
    app: Flask, mint: Callable[..., str], api: ApiOf, tenant: FreshTenant
) -> None:
    pin = pin_of(make_session(api()))
    pinned = signed_in(app, mint("admin", pin=pin))
    for home in ("/console", "/console/"):
        assert pinned.get(home).headers["Location"] == "/console/records"
    assert api(minted(pinned, name="narrow")).get("/v1/keys/self").json["pin"] == pin
    assert "root" not in re.sub(r'class="[^"]*"', "", pinned.get(KEYS_PAGE).text)
    root = api().get("/v1/keys/self").json["id"]
    assert pinned.get(f"{KEYS_PAGE}/{root}").status_code == 404
