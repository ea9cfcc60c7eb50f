"""Forms are from here, once; pages show what the key's role and pin allow."""

import re
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any

import click
import pytest
from flask import Flask
from record_service import cli

from app.api.http.auth import access_rule
from app.core.callers import Role
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor, hidden, paths, signed_in
from tests.support.callers.making import make_session, pin_of
from tests.support.callers.matrix import World
from tests.support.callers.sending import Worker, history, make_findings, make_webhook

PAGE = "/console/deliveries"


@pytest.fixture
def failed(api: ApiOf, worker: Worker) -> dict[str, Any]:
    """Return a delivery that failed for good."""
    webhook = make_webhook(api())
    make_findings(api(), 1)
    assert worker.send(webhook, 500) == 1
    (row,) = history(api(), webhook)
    assert row["status"] == "failed"
    return row


def replay_path(row: dict[str, Any]) -> str:
    return f"/console/webhooks/{row['webhook_id']}/deliveries/{row['id']}"


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
        # Nor is its input kept for a visitor who signs in afterwards.
        assert visitor.post(f"{path}/replay", {"rate": "7"}, **origin).status_code == 303
    assert admin.post(f"{path}/replay", {**fields, "_token": "0" * 64}).status_code == 409
    assert "<td>" not in admin.get("/console/replays").text


def test_a_form_sent_after_its_session_ended_comes_back_with_its_input(
    admin: Visitor, tenant: FreshTenant
) -> None:
    typed = {**admin.form("/console/replays/new", "/console/replays/new"), "rate": '7"<b>'}
    admin.send(PAGE, to="/console/sign-out")
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
    reader = signed_in(app, mint("read"))
    pinned = signed_in(app, mint("admin", pin=pin_of(make_session(api()))))
    token = reader.form(PAGE, "/console/sign-out")
    names = {"webhook_id": failed["webhook_id"], "delivery_id": failed["id"]}
    seen = 0
    for rule in app.url_map.iter_rules():
        access = access_rule(app.view_functions[rule.endpoint])
        if not rule.rule.startswith("/console") or access is None or access.role is None:
            continue
        path = rule.rule.replace("<any(csv,ndjson):form>", "csv")
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda match: names.get(match[1], "x"), path)
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
            holder = signed_in(app, mint(str(role), pin=pin))
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
        said = re.search(r"<code>record-service ([^<]+)</code>", admin.get(path).text)
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
