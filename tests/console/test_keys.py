"""Keys in the console: minted and shown once, revoked with what descends from them."""

import re
from collections.abc import Callable

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app import ids
from app.core.keys import keys
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor, signed_in
from tests.support.callers.making import make_session, pin_of

PAGE = "/console/keys"
_TEXT = re.compile(r"svc_[0-9A-Za-z]{46}")


def minted(visitor: Visitor, **fields: str) -> str:
    answer = visitor.post(PAGE, {**visitor.form(PAGE), "role": "admin", **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    (text,) = _TEXT.findall(answer.text)
    return str(text)


def test_a_key_is_shown_once_and_a_form_that_is_sent_twice_mints_one(
    admin: Visitor, api: ApiOf
) -> None:
    fields = {**admin.form(PAGE), "name": "<b>\u202eauditor", "role": "read", "expires_in": "7d"}
    first, again = (admin.post(PAGE, fields) for _ in range(2))
    (text,) = _TEXT.findall(first.text)
    assert _TEXT.findall(again.text) == [text]
    assert len(api().get("/v1/keys").json["data"]) == 2
    assert api(text).get("/v1/keys/self").json["expires_at"] is not None
    listed = admin.get(PAGE).text
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
    answer = admin.post(PAGE, {**admin.form(PAGE), "role": "write", **fields})
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
    place = f"{PAGE}/{key_id}"
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
    page = admin.get(f"{PAGE}/{key_id}").text
    assert "1 key that still works descends from it" in page


def test_a_key_offers_no_revocation_of_itself_nor_of_what_it_descends_from(
    admin: Visitor, app: Flask, api: ApiOf
) -> None:
    child = minted(admin, name="child")
    holder = signed_in(app, child)
    own = api(child).get("/v1/keys/self").json
    for key_id in (own["id"], own["created_by"]):
        place = f"{PAGE}/{key_id}"
        assert 'name="descendants"' not in holder.get(place).text
        form = {**holder.form(PAGE), "descendants": "true"}
        assert holder.post(f"{place}/revoke", form).status_code == 409
    assert "cannot revoke itself" in holder.get(f"{PAGE}/{own['id']}").text


def test_a_pinned_key_mints_and_sees_within_its_pin(
    app: Flask, mint: Callable[..., str], api: ApiOf, tenant: FreshTenant
) -> None:
    pin = pin_of(make_session(api()))
    pinned = signed_in(app, mint("admin", pin=pin))
    for home in ("/console", "/console/"):
        assert pinned.get(home).headers["Location"] == "/console/records"
    assert api(minted(pinned, name="narrow")).get("/v1/keys/self").json["pin"] == pin
    assert "root" not in re.sub(r'class="[^"]*"', "", pinned.get(PAGE).text)
    root = api().get("/v1/keys/self").json["id"]
    assert pinned.get(f"{PAGE}/{root}").status_code == 404
