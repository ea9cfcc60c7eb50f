"""Who may do what: every route, every role, every pin, and every id that belongs to somebody else.

The tables, here and in tests/support/callers/matrix.py, are the specification; a route that stands
in neither of them fails a test.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.core import tenants
from app.core.log.sequencer import Sequencer
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import Answer, Api, FreshTenant
from tests.support.callers.matrix import PREFIXES, ROWS, Row, World
from tests.support.secrets import MASTER_KEYS

# Anybody may read these; /metrics has a token of its own and is not there without one.
PUBLIC = {
    "/": 302,
    "/.well-known/jwks.json": 200,
    "/client/": 200,
    "/client/<name>": 404,
    "/docs": 200,
    "/docs/<name>": 404,
    "/docs/start.js": 200,
    "/healthz": 200,
    "/metrics": 404,
    "/openapi.json": 200,
    "/problems/<slug>": 404,
    "/readyz": 200,
    "/robots.txt": 200,
    "/s/<token>": 404,
    "/unsubscribe/<token>": 404,
    "/verify.py": 200,
    "/v1/log/<int:generation>/checkpoint": 404,
    "/v1/log/<int:generation>/key": 404,
    "/v1/log/<int:generation>/tile/<path:tile>": 404,
    "/v1/log/checkpoint": 200,
    "/v1/log/key": 200,
    "/v1/log/proof/consistency": 422,
    "/v1/log/proof/inclusion": 422,
    "/v1/log/tile/<path:tile>": 404,
}

# What the holder of a mail's link may do (tests/api/findings/test_unsubscribe.py).
PUBLIC_POSTS = {("POST", "/unsubscribe/<token>")}

EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=str)


def send(caller: Api, row: Row, world: World, **changed: str) -> Answer:
    """Send the route's request about the world's things, some ids changed."""
    named = world.ids() | changed
    path = row.rule
    for name in row.parameters:
        path = path.replace(f"<{name}>", named[name])
    if row.rule.endswith("/decisions"):
        path += f"?event_id={named['event_id']}"
    if row.rule == "/v1/search":
        path += "?q=a"
    body = world.body(row)
    impatient = {"headers": {"Prefer": "wait=0"}}
    return caller.request(row.method, path, **impatient, **({} if body is None else {"json": body}))


@pytest.fixture(scope="module")
def world(app: Flask, database: Database, settings: Settings) -> World:
    """Return a world for requests that leave it as it is: they read, or are refused."""
    made = new_world(app, database)
    Sequencer(database, settings.master_keys, settings.log_origin, None).run()
    return made


@pytest.fixture(scope="module")
def strangers(app: Flask, database: Database) -> World:
    """Return the world of another tenant."""
    return new_world(app, database)


def new_world(app: Flask, database: Database) -> World:
    _, key = tenants.create(database, MASTER_KEYS, "a world's")
    return World(Api(app.test_client(), key))


@pytest.fixture
def holder(app: Flask) -> Callable[[str | None], Api]:
    """Return a maker of callers from the text of a key."""
    return lambda key: Api(app.test_client(), key)


def test_every_route_stands_in_a_table(app: Flask) -> None:
    routes = {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if not rule.rule.startswith("/console")  # tests/console
    }

    public = {("GET", rule) for rule in PUBLIC} | PUBLIC_POSTS
    assert routes == {(row.method, row.rule) for row in ROWS} | public


@EACH_ROW
def test_each_caller_gets_what_the_table_says(
    row: Row, world: World, tenant: FreshTenant, holder: Callable[[str | None], Api]
) -> None:
    root = holder(tenant.root_key)
    got = {}
    for role, pin in row.expected:
        # A world that is changed is left behind: each caller finds everything as it was made.
        changes = row.method != "GET" and row.expected[role, pin] < 400
        fresh = World(root) if changes else world
        got[role, pin] = send(holder(fresh.key_text(role, pin)), row, fresh).status_code

    assert got == row.expected
    assert send(holder(None), row, world).status_code == row.no_key


@EACH_ROW
def test_refusals_of_a_caller_come_before_those_of_a_request(
    row: Row, world: World, holder: Callable[[str | None], Api]
) -> None:
    """Whoever may not ask does not learn what is there, nor what a body must hold."""
    nowhere = dict.fromkeys(row.parameters, "nothing")
    for (role, pin), expected in row.expected.items():
        if expected == 403 and str(row) != "POST /v1/keys":
            answer = send(holder(world.key_text(role, pin)), row, world, **nowhere)
            assert answer.status_code == 403, (role, pin)


@pytest.mark.parametrize("rule", PUBLIC)
def test_public_routes_need_no_key(client: FlaskClient, log: Sequencer, rule: str) -> None:
    log.run()
    path = rule.replace("<int:generation>", "9")
    with client.get(re.sub("<[^>]+>", "nothing", path)) as answer:
        assert answer.status_code == PUBLIC[rule]


@pytest.mark.parametrize(
    ("row", "parameter"),
    [
        pytest.param(row, parameter, id=f"{row} {parameter}")
        for row in ROWS
        for parameter in row.parameters
    ],
)
def test_an_id_of_somebody_else_is_answered_like_one_that_does_not_exist(
    row: Row,
    parameter: str,
    world: World,
    strangers: World,
    holder: Callable[[str | None], Api],
) -> None:
    theirs = strangers.ids()[parameter]
    prefix = PREFIXES[parameter]
    unknown = f"{prefix}_01920000000070008000000000000000"
    callers = [world.api]
    if row.expected["admin", "inside"] != 403:
        callers.append(holder(world.key_text("admin", "inside")))
    foreign = {
        "another tenant's": theirs,
        "another kind's": f"ten_{'0' * 32}",
        "malformed": "nothing",
        "cut short": unknown[:-1],
        "too long": unknown + "0",
        "upper case": unknown.upper(),
        "padded": f"%20{unknown}",
        "nil": f"{prefix}_{'0' * 32}",
        "with a NUL": f"{unknown}%00",
        "not ASCII": f"{prefix}_%D9%A1{unknown[5:]}",
        "SQL": "'%20OR%201=1--",
    }
    for caller in callers:
        expected = _comparable(send(caller, row, world, **{parameter: unknown}))
        assert expected["status"] == 404
        for name, identifier in foreign.items():
            answer = send(caller, row, world, **{parameter: identifier})
            assert _comparable(answer) == expected, name


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.parameters and row.expected["admin", "outside"] == 404],
    ids=str,
)
def test_an_id_outside_the_pin_is_answered_like_one_that_does_not_exist(
    row: Row, world: World, holder: Callable[[str | None], Api]
) -> None:
    pinned = holder(world.key_text("admin", "outside"))
    # What lies below a thing of the pin's is as hidden as that.
    parameter = row.parameters[0]
    unknown = f"{PREFIXES[parameter]}_01920000000070008000000000000000"

    outside = _comparable(send(pinned, row, world))

    assert outside["status"] == 404
    assert outside == _comparable(send(pinned, row, world, **{parameter: unknown}))


def test_a_delivery_is_found_under_its_own_webhook_only(
    tenant: FreshTenant, holder: Callable[[str | None], Api]
) -> None:
    root = holder(tenant.root_key)
    world, other = World(root), World(root)
    for row in ROWS:
        if "<delivery_id>" in row.rule:
            assert send(root, row, world, webhook_id=other.webhook["id"]).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda world, pin: pin, id="another tenant's agent"),
        pytest.param(lambda world, pin: {**world.pin, "agent_id": "agt_x"}, id="malformed agent"),
    ],
)
def test_a_foreign_agent_in_a_body_is_answered_like_one_that_does_not_exist(
    body: Callable[[World, dict[str, str]], dict[str, str]],
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    holder: Callable[[str | None], Api],
) -> None:
    world = World(holder(tenant.root_key))
    theirs = World(holder(other_tenant.root_key)).pin
    unknown = {**world.pin, "agent_id": "agt_01920000000070008000000000000000"}
    for caller in (world.api, holder(world.key_text("write", "inside"))):
        expected = _comparable(caller.post("/v1/sessions", unknown))
        assert expected["status"] == 404
        assert _comparable(caller.post("/v1/sessions", body(world, theirs))) == expected


def test_a_principal_outside_the_pin_is_answered_like_an_agent_that_does_not_exist(
    tenant: FreshTenant, holder: Callable[[str | None], Api]
) -> None:
    world = World(holder(tenant.root_key))
    pinned = holder(world.key_text("write", "inside"))
    unknown = {**world.pin, "agent_id": "agt_01920000000070008000000000000000"}

    refused = pinned.post("/v1/sessions", {**world.pin, "principal": "bob@example.com"})

    assert _comparable(refused) == _comparable(pinned.post("/v1/sessions", unknown))


def test_lists_show_a_pinned_key_its_own_and_a_stranger_nothing(
    database: Database, tenant: FreshTenant, holder: Callable[[str | None], Api]
) -> None:
    world = World(holder(tenant.root_key))
    World(holder(tenant.root_key))
    stranger = holder(tenants.create(database, MASTER_KEYS, "nobody")[1])
    inside = holder(world.key_text("read", "inside"))
    outside = holder(world.key_text("read", "outside"))
    for path, own in (
        ("/v1/agents", world.session["agent_id"]),
        ("/v1/sessions", world.session["id"]),
        ("/v1/findings", world.finding["id"]),
    ):
        seen = [row["id"] for row in inside.get(path).json["data"]]
        assert seen == [own], path
        assert own not in outside.get(path).text
        assert stranger.get(path).json["data"] == []


def _comparable(answer: Answer) -> dict[str, Any]:
    """Return everything an answer says but for the request's own id."""
    said: dict[str, Any] = dict(answer.json)
    assert said.pop("request_id")
    return said
