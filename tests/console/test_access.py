"""Who gets into the console: sessions and their ends, roles, and forms of other sites."""

import re
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from html import unescape
from typing import Any

import click
import pytest
from flask import Flask
from records import cli
from sqlalchemy import Engine, text

from app.api.http.access.auth import access_rule
from app.api.http.access.rate_limit import SIGN_INS
from app.api.http.services import EXTENSION
from app.core.callers import Role
from app.core.keys import console_sessions
from app.database import Database
from app.lib.gateway.streams import BodyWanted, Pending
from app.settings import Settings
from app.web import create_app
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.console import BASE, HERE, Visitor, hidden, paths
from tests.support.callers.making import make_session, pin_of
from tests.support.callers.matrix import World
from tests.support.callers.sending import Worker, history, make_findings, make_webhook

ApiOf = Callable[..., Api]
PAGE = "/console/deliveries"


def is_signed_in(visitor: Visitor, **headers: str) -> bool:
    return visitor.get(PAGE, **headers).status_code == 200


def grow_old(engine: Engine, tenant: FreshTenant, column: str, by: timedelta) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(f"UPDATE console_sessions SET {column} = {column} - :by WHERE tenant_id = :t"),
            {"by": by, "t": tenant.id},
        )


@pytest.fixture
def failed(api: ApiOf, database: Database, tenant: FreshTenant) -> dict[str, Any]:
    """Return a delivery that failed for good."""
    webhook = make_webhook(api())
    make_findings(api(), 1)
    assert Worker(database, tenant).send(webhook, 500) == 1
    (row,) = history(api(), webhook)
    assert row["status"] == "failed"
    return row


def replay_path(row: dict[str, Any]) -> str:
    return f"/console/webhooks/{row['webhook_id']}/deliveries/{row['id']}"


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
    first, thief = Visitor(app), Visitor(app)
    first.sign_in(tenant.root_key)
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
    one, other, root = Visitor(app), Visitor(app), Visitor(app)
    for visitor, key in zip((one, other, root), (*keys, tenant.root_key), strict=True):
        visitor.sign_in(key)
        assert is_signed_in(visitor)
    one.post("/console/sign-out", one.form(PAGE, "/console/sign-out"))
    assert not is_signed_in(one)
    key_id = api(keys[1]).get("/v1/keys/self").json["id"]
    assert api().delete(f"/v1/keys/{key_id}").status_code == 204
    assert not is_signed_in(other)
    grow_old(admin_engine, tenant, "created_at", console_sessions.LONGEST)
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
    own = create_app(settings)
    visitor = Visitor(own)
    answers = [visitor.sign_in("nonsense").status_code for _ in range(SIGN_INS.limit + 1)]
    own.extensions[EXTENSION].close()
    assert answers == [401] * SIGN_INS.limit + [429]


def test_an_attempt_whose_body_comes_late_is_counted_as_well(settings: Settings) -> None:
    own = create_app(settings)
    visitor = Visitor(own)
    for _ in range(SIGN_INS.limit):
        with pytest.raises(BodyWanted):
            visitor.client.post(
                "/console/sign-in",
                base_url=BASE,
                headers=HERE,
                environ_overrides={"wsgi.input": Pending()},
            )
    refused = visitor.sign_in("nonsense").status_code
    own.extensions[EXTENSION].close()
    assert refused == 429


def test_another_site_can_send_no_form(admin: Visitor, visitor: Visitor, failed: Any) -> None:
    path = replay_path(failed)
    fields = admin.form(path, f"{path}/replay")
    for origin in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "", "Origin": "https://evil.test"},
        {"Sec-Fetch-Site": "", "Origin": "null"},
    ):
        refused = admin.post(f"{path}/replay", fields, **origin)
        assert refused.status_code == 403
        assert "was not sent by a page of the console" in refused.text
        assert visitor.sign_in("key", next=PAGE).status_code == 401
        # Nor is it shown to somebody who is about to sign in.
        assert visitor.post(f"{path}/replay", {"rate": "7"}, **origin).status_code == 303
    assert admin.post(f"{path}/replay", {**fields, "_token": "0" * 64}).status_code == 409
    assert "<td>" not in admin.get("/console/replays").text


def test_a_form_sent_after_its_session_ended_comes_back_with_its_input(
    admin: Visitor, tenant: FreshTenant
) -> None:
    typed = {**admin.form("/console/replays/new", "/console/replays/new"), "rate": '7"<b>'}
    admin.post("/console/sign-out", admin.form(PAGE, "/console/sign-out"))
    asked = admin.post("/console/replays/new", typed)
    assert asked.status_code == 401
    again = admin.sign_in(tenant.root_key, **hidden(asked.text, "/console/sign-in"))
    assert again.status_code == 200
    fields = hidden(again.text, "/console/replays/new")
    assert "7&#34;&lt;b&gt;" in again.text
    refused = admin.post("/console/replays/new", {**fields, "rate": '7"<b>'})
    assert refused.status_code == 422
    assert "Send an integer from 1 to 10000." in refused.text


def test_a_form_that_is_sent_twice_at_once_is_done_once(
    admin: Visitor, app: Flask, failed: Any, api: ApiOf
) -> None:
    path = replay_path(failed)
    fields = admin.form(path, f"{path}/replay")
    cookie = admin.client.get_cookie("__Host-console_session", "records.test")
    assert cookie is not None

    def click(_: int) -> str:
        tab = Visitor(app)
        tab.client.set_cookie(cookie.key, cookie.value, domain="records.test", secure=True)
        return tab.post(f"{path}/replay", fields).headers["Location"]

    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(click, range(4)))
    assert len(places) == 1
    made = api().get("/v1/deliveries").json["data"]
    assert [row["kind"] for row in made] == ["replay", "event"]
    shown = admin.get(places.pop()).text
    assert "pending" in shown


def test_a_key_gets_what_its_role_and_pin_allow_and_sees_no_other_button(
    app: Flask, mint: Callable[..., str], api: ApiOf, failed: Any
) -> None:
    reader, pinned = Visitor(app), Visitor(app)
    reader.sign_in(mint("read"))
    pinned.sign_in(mint("admin", pin=pin_of(make_session(api()))))
    token = reader.form(PAGE, "/console/sign-out")
    names = {"webhook_id": failed["webhook_id"], "delivery_id": failed["id"]}
    seen = 0
    for rule in app.url_map.iter_rules():
        access = access_rule(app.view_functions[rule.endpoint])
        if not rule.rule.startswith("/console") or access is None or access.role is None:
            continue
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda match: names.get(match[1], "x"), rule.rule)
        seen += 1
        if "POST" in (rule.methods or ()) and access.role is not Role.READ:
            assert reader.post(path, token).status_code == 403, path
            assert f'action="{path}"' not in reader.get(replay_path(failed)).text
        if access.whole_tenant and "GET" in (rule.methods or ()):
            assert pinned.get(path).status_code == 403, path
    assert seen > 10


def test_no_page_shows_a_form_or_a_link_that_its_key_may_not_use(
    app: Flask, mint: Callable[..., str], api: ApiOf, failed: Any
) -> None:
    world = World(api())
    routes = app.url_map.bind("records.test")
    every = [*paths(app, world), replay_path(failed)]
    seen: dict[str, int] = {}
    for role in Role:
        for pin in (None, pin_of(world.session)):
            holder = Visitor(app)
            holder.sign_in(mint(str(role), pin=pin))
            for path in every:
                page = holder.get(path)
                if page.status_code != 200:
                    continue
                for method, place in _places(page.text):
                    endpoint, _ = routes.match(unescape(place).partition("?")[0], method=method)
                    access = access_rule(app.view_functions[endpoint])
                    assert access is not None, place
                    seen[method] = seen.get(method, 0) + 1
                    if access.role is not None:
                        assert role.allows(access.role), (role, path, place)
                        assert pin is None or not access.whole_tenant, (path, place)
    assert seen["POST"] > 50
    assert seen["GET"] > 500


def _places(page: str) -> list[tuple[str, str]]:
    """Return where a page's links, buttons and forms lead, each with its method."""
    acts = re.findall(r'<form[^>]* method="post" action="([^"]+)"', page)
    acts += re.findall(r'formaction="([^"]+)"', page)
    links = re.findall(r'<a[^>]* href="(/console[^"#]*)', page)
    return [("POST", place) for place in acts] + [("GET", place) for place in links]


def test_the_command_that_a_page_names_exists_and_takes_what_is_written(
    admin: Visitor, app: Flask, api: ApiOf
) -> None:
    named = 0
    for path in paths(app, World(api())):
        said = re.search(r"<code>records ([^<]+)</code>", admin.get(path).text)
        if said is None:
            continue
        named += 1
        name, *rest = shlex.split(unescape(said[1]))
        command = cli.root.commands[name]
        if isinstance(command, click.Group):
            name, *rest = rest
            command = command.commands[name]
        command.make_context(name, rest)
    assert named > 8


def test_errors_are_pages_and_pages_have_etags(admin: Visitor, visitor: Visitor) -> None:
    for path in ("/console/nothing", "/console/webhooks/whk_x", f"{PAGE}?cursor=x"):
        answer = admin.get(path)
        assert answer.mimetype == "text/html"
        assert answer.status_code == (200 if "cursor" in path else 404)
    etag = admin.get(PAGE).headers["ETag"]
    assert admin.get(PAGE, **{"If-None-Match": etag}).status_code == 304
    (style,) = re.findall(
        r'href="(/console/assets/\w+/console\.css)"', visitor.get("/console/sign-in").text
    )
    kept = visitor.get(style)
    assert kept.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert visitor.get(style, **{"If-None-Match": kept.headers["ETag"]}).status_code == 304
