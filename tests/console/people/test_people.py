"""People sign in at an OpenID provider: who gets in, in which role, and what ends it."""

import re
from collections.abc import Callable
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app import ids
from app.core.callers import Role
from app.manage.commands import main
from tests.console.people.conftest import BEGIN, PAGE, come_back, entered, is_in
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor, hidden, signed_in
from tests.support.servers.openid import (
    CLIENT_ID,
    CLIENT_SECRET,
    OpenIdProvider,
)


def test_a_person_gets_the_highest_role_of_their_groups_and_goes_on_where_they_were(
    with_provider: Flask, provider: OpenIdProvider, give: Callable[..., None], group: str
) -> None:
    give(Role.READ)
    give(Role.WRITE, "on-call")
    visitor = Visitor(with_provider)
    assert "Sign in at 127.0.0.1" in visitor.get("/console/sign-in").text
    provider.claims["groups"] = [group, "on-call", "strangers"]
    answer = visitor.get(come_back(visitor, next=f"{PAGE}?x=1"))
    assert answer.headers["Location"] == f"{PAGE}?x=1"
    shown = visitor.get(PAGE).text
    assert "Ada Lovelace" in shown
    assert '<span class="soft">write</span>' in shown
    query = parse_qs(urlsplit(visitor.get(BEGIN).headers["Location"]).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["response_type"] == ["code"]
    assert CLIENT_SECRET not in str(query)


def test_the_audit_chain_names_the_person_on_every_way_out_of_it(
    with_provider: Flask, give: Callable[..., None], api: ApiOf, provider: OpenIdProvider
) -> None:
    give(Role.ADMIN)
    ada = entered(with_provider)
    form = {**ada.form("/console/keys"), "name": "deploy", "role": "read"}
    assert ada.post("/console/keys", form).status_code == 200
    who = ids.text("usr", ids.of_person(provider.issuer, "ada"))
    actor = {
        "type": "person",
        "id": who,
        "role": "admin",
        "person": {
            "issuer": provider.issuer,
            "subject": "ada",
            "name": "Ada Lovelace",
            "email": "ada@example.com",
        },
    }
    for asked in (who, "ada@example.com", "ADA@example.com"):
        listed = api().get("/v1/audit", query_string={"actor": asked}).json
        assert [each["action"] for each in listed["data"]] == ["key.mint", "console.sign_in"]
        assert [each["actor"] for each in listed["data"]] == [actor, actor]
        assert listed["key_names"][who] == "Ada Lovelace"
    assert api().get("/v1/audit?actor=eve@example.com").json["data"] == []
    minted = api().get("/v1/keys").json["data"][0]
    assert minted["minted_by"] == {"id": who, "name": "Ada Lovelace"}
    assert minted["created_by"] == who
    exported = api().get(
        "/v1/audit", query_string={"layout": "events"}, headers={"Accept": "application/x-ndjson"}
    )
    assert '"actor_email":"ada@example.com","actor_issuer":"http' in exported.text
    assert api().get("/v1/audit/verify").status_code == 200
    page = ada.get(f"/console/audit?actor={who}").text
    assert f'<a href="/console/people/{who}">' in page
    page = ada.get(f"/console/people/{who}").text
    assert "ada@example.com" in page
    assert "They are the tenant's" in page
    assert f'data-row="{minted["id"]}"' in page


def test_a_role_that_is_taken_away_and_a_session_that_is_over_end_access(
    with_provider: Flask,
    give: Callable[..., None],
    provider: OpenIdProvider,
    tenant: FreshTenant,
    admin_engine: Engine,
) -> None:
    give(Role.WRITE)
    ada = entered(with_provider)
    give(Role.READ)
    assert '<span class="soft">read</span>' in ada.get(PAGE).text
    give(None)
    assert not is_in(ada)
    give(Role.READ)
    assert is_in(ada)
    with admin_engine.begin() as connection:
        later = "UPDATE console_sessions SET expires_at = now() WHERE tenant_id = :t"
        connection.execute(text(later), {"t": tenant.id})
    # The provider is asked again, without a page in between; by then they have left the group.
    over = ada.get(f"{PAGE}?a=1")
    assert over.headers["Location"] == f"{BEGIN}?next=/console/webhooks?a%3D1"
    assert ada.get(PAGE, **{"Sec-Fetch-Dest": "empty"}).status_code == 401
    provider.claims["groups"] = ["alumni"]
    refused = ada.get(come_back(ada))
    assert refused.status_code == 403
    assert "alumni" in refused.text
    assert not is_in(ada)


def test_a_suspended_tenant_is_closed_to_people_too(
    with_provider: Flask, give: Callable[..., None], tenant: FreshTenant, admin_engine: Engine
) -> None:
    give(Role.ADMIN)
    ada = entered(with_provider)
    with admin_engine.begin() as connection:
        suspend = "UPDATE tenants SET suspended_at = now() WHERE id = :t"
        connection.execute(text(suspend), {"t": tenant.id})
    assert not is_in(ada)
    assert ada.get(come_back(ada)).status_code == 403


def test_a_person_of_several_tenants_chooses_one_and_stays_in_it(
    with_provider: Flask,
    give: Callable[..., None],
    tenant: FreshTenant,
    other_tenant: FreshTenant,
) -> None:
    give(Role.READ)
    give(Role.ADMIN, to=other_tenant)
    ada, eve = Visitor(with_provider), Visitor(with_provider)
    asked = ada.get(come_back(ada, next=PAGE))
    assert asked.status_code == 200
    assert not is_in(ada)
    chosen = ids.text("ten", other_tenant.id)
    form = {**hidden(asked.text, "/console/sign-in/tenant"), "tenant": chosen}
    assert chosen in unescape(asked.text)
    # What was sealed for one browser is of no use in another; nor is another tenant's id.
    eve.get(BEGIN)
    assert eve.post("/console/sign-in/tenant", form).status_code == 401
    stranger = {**form, "tenant": ids.text("ten", ids.new())}
    assert ada.post("/console/sign-in/tenant", stranger).status_code == 403
    foreign = ada.post("/console/sign-in/tenant", form, **{"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    assert ada.post("/console/sign-in/tenant", form).headers["Location"] == PAGE
    assert '<span class="soft">admin</span>' in ada.get(PAGE).text
    # The next sign-in stays there, unless they want to choose.
    assert ada.get(come_back(ada)).status_code == 303
    assert '<span class="soft">admin</span>' in ada.get(PAGE).text
    assert ada.get(come_back(ada, choose="1")).status_code == 200


def test_a_form_sent_after_the_session_was_over_comes_back_from_the_provider(
    with_provider: Flask, give: Callable[..., None], tenant: FreshTenant, admin_engine: Engine
) -> None:
    give(Role.ADMIN)
    ada = entered(with_provider)
    typed = {**ada.form("/console/keys"), "name": "typed long ago", "role": "read"}
    with admin_engine.begin() as connection:
        connection.execute(
            text("DELETE FROM console_sessions WHERE tenant_id = :t"), {"t": tenant.id}
        )
    asked = ada.post("/console/keys", typed)
    assert asked.status_code == 401
    kept = hidden(asked.text, "/console/sign-in/again")
    assert ada.post("/console/sign-in/again", kept).status_code == 401
    ada.get(come_back(ada))
    again = ada.post("/console/sign-in/again", kept)
    assert again.status_code == 200
    assert "typed long ago" in again.text
    fields = {**hidden(again.text, "/console/keys"), "name": "typed long ago", "role": "read"}
    assert ada.post("/console/keys", fields).status_code == 200


def test_sessions_are_listed_and_ended_and_the_chain_says_by_whom(
    with_provider: Flask, give: Callable[..., None], tenant: FreshTenant, api: ApiOf
) -> None:
    give(Role.WRITE)
    root = signed_in(with_provider, tenant.root_key)
    ada, again, key = entered(with_provider), entered(with_provider), Visitor(with_provider)
    key.sign_in(tenant.root_key)
    page = root.get("/console/sign-ins").text
    assert page.count("<tr data-row=") == 4
    assert page.count("this one") == 1
    assert "engineers" in page
    assert ada.get("/console/sign-ins").status_code == 403
    one = re.findall(r'action="(/console/sign-ins/con_[0-9a-f]{32}/end)"', page)
    # The newest first: the key's, then the person's second one.
    form = root.form("/console/sign-ins", one[1])
    assert root.post(one[1], form).status_code == 303
    assert root.post(one[1], {**form, "_key": "another"}).status_code == 404
    assert (is_in(ada), is_in(again), is_in(key), is_in(root)) == (True, False, True, True)
    end_all = root.form("/console/sign-ins", "/console/sign-ins/end")
    assert root.post("/console/sign-ins/end", end_all).status_code == 303
    assert (is_in(ada), is_in(again), is_in(key), is_in(root)) == (False, False, False, True)
    ended = api().get("/v1/audit?action=console.end_session").json["data"]
    assert len(ended) == 3
    assert {each["actor"]["type"] for each in ended} == {"key"}


def test_signing_out_ends_the_session_and_shows_the_way_out_of_the_provider(
    with_provider: Flask, give: Callable[..., None], provider: OpenIdProvider, api: ApiOf
) -> None:
    give(Role.READ)
    ada = entered(with_provider)
    out = ada.send(PAGE, to="/console/sign-out")
    page = ada.get(out.headers["Location"]).text
    assert f"{provider.issuer}/end_session?client_id={CLIENT_ID}" in page
    assert "Sign out there as well" in page
    # And nothing signs them in again by itself.
    assert ada.get(PAGE).headers["Location"].startswith("/console/sign-in?")
    actions = [each["action"] for each in api().get("/v1/audit?action=console.").json["data"]]
    assert actions == ["console.sign_out", "console.sign_in"]


def test_without_a_provider_nothing_of_it_is_there(app: Flask) -> None:
    visitor = Visitor(app)
    assert visitor.get(BEGIN).status_code == 404
    assert "Or with an API key" not in visitor.get("/console/sign-in").text


def test_the_operator_gives_groups_their_roles(
    environ: dict[str, str],
    tenant: FreshTenant,
    api: ApiOf,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    asked = ["tenant", "groups", ids.text("ten", tenant.id)]
    assert main([*asked, "cn=admins,o=acme=admin", "ops=write", "gone=none"]) == 0
    assert main([*asked, "ops=none"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "cn=admins,o=acme=admin"
    told = api().get("/v1/audit?action=tenant.groups").json["data"]
    assert [each["details"]["groups"] for each in told] == [
        {"ops": None},
        {"cn=admins,o=acme": "admin", "ops": "write"},
    ]
