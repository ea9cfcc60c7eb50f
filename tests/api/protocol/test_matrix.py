"""Who may do what: every route, every role, every pin, and every id of another tenant.

The tables, here and in tests/support/callers/matrix.py, are the specification; a route that stands
in neither of them fails a test.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.api.http.services import EXTENSION
from app.core import tenants
from app.core.log.sequencer import Sequencer
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import make_agent, refused
from tests.support.callers.matrix import PREFIXES, ROWS, Row, World, send
from tests.support.secrets import MASTER_KEYS

# Anybody may read these; /metrics has a token of its own and is not there without one.
PUBLIC = {
    "/": 302,
    "/.well-known/jwks.json": 200,
    "/client/": 200,
    "/client/<name>": 404,
    "/docs": 200,
    "/docs/docs.js": 200,
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

# Hot paths, which open no transaction of the ORM.
UNROLLED = {"POST /v1/records", "POST /v1/findings", "POST /v1/findings/batch"}

EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=str)


@pytest.fixture(scope="module")
def world(app: Flask, database: Database, settings: Settings) -> Iterator[World]:
    """Yield a world for requests that read or are refused; they must leave it as it is."""
    made = new_world(app, database, settings)
    before = made.shown("/v1/deliveries")
    yield made
    assert made.shown("/v1/deliveries") == before


@pytest.fixture(scope="module")
def strangers(app: Flask, database: Database, settings: Settings) -> Iterator[World]:
    """Yield the world of another tenant, in which no request may change anything."""
    made = new_world(app, database, settings)
    lists = ("/v1/deliveries", "/v1/jobs", "/v1/audit", made.share_links)
    before = made.shown(*lists)
    yield made
    assert made.shown(*lists) == before
    assert Api(app.test_client(), made.key["key"]).get("/v1/keys/self").status_code == 200


def new_world(app: Flask, database: Database, settings: Settings) -> World:
    """Return a world of a new tenant whose record is in the log."""
    _, key = tenants.create(database, MASTER_KEYS, "a world's")
    made = World(Api(app.test_client(), key))
    Sequencer(database, settings.master_keys, settings.log_origin, None).run()
    return made


@contextmanager
def rolled_back(app: Flask) -> Iterator[None]:
    """Have the application roll back each transaction that succeeds, in place of its commit."""
    database = app.extensions[EXTENSION].database
    real = database.transaction

    @contextmanager
    def transaction(*args: Any, **options: Any) -> Iterator[Any]:
        with real(*args, **options) as session:
            yield session
            session.rollback()

    database.transaction = transaction
    try:
        yield
    finally:
        del database.transaction


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
    row: Row, app: Flask, world: World, tenant: FreshTenant, holder: Callable[[str | None], Api]
) -> None:
    root = holder(tenant.root_key)
    got = {}
    for role, pin in row.expected:
        # Each caller finds everything as it was made: what changes it is rolled back, or has a
        # world of its own.
        own = str(row) in UNROLLED and row.expected[role, pin] < 400
        seen = World(root) if own else world
        caller = holder(seen.key_text(role, pin))
        with rolled_back(app) if row.method != "GET" and not own else nullcontext():
            answer = send(caller, row, seen)
        got[role, pin] = answer.status_code
        if answer.status_code == 403:
            told = refused(answer, 403, row.refusal(role, pin))
            if row.refusal(role, pin) == "insufficient-role":
                assert f"a key with the role {row.needed}" in told["detail"]

    assert got == row.expected
    refused(send(holder(None), row, world), row.no_key, "unauthenticated")


@EACH_ROW
def test_refusals_of_a_caller_come_before_those_of_a_request(
    row: Row, world: World, holder: Callable[[str | None], Api]
) -> None:
    """A caller without the right learns neither what exists nor what a body must hold."""
    nowhere = dict.fromkeys(row.parameters, "nothing")
    for (role, pin), expected in row.expected.items():
        if expected == 403 and str(row) != "POST /v1/keys":
            answer = send(holder(world.key_text(role, pin)), row, world, **nowhere)
            refused(answer, 403, row.refusal(role, pin))


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
def test_an_id_of_another_tenant_is_answered_like_one_that_does_not_exist(
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
        expected = refused(send(caller, row, world, **{parameter: unknown}), 404, "not-found")
        for name, identifier in foreign.items():
            answer = send(caller, row, world, **{parameter: identifier})
            assert refused(answer, 404, "not-found") == expected, name


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

    outside = refused(send(pinned, row, world), 404, "not-found")

    nothing = send(pinned, row, world, **{parameter: unknown})
    assert outside == refused(nothing, 404, "not-found")


def test_a_delivery_is_found_under_its_own_webhook_only(
    tenant: FreshTenant, holder: Callable[[str | None], Api]
) -> None:
    root = holder(tenant.root_key)
    world, other = World(root), World(root)
    for row in ROWS:
        if "<delivery_id>" in row.rule:
            moved, unknown = (
                refused(send(root, row, world, **changed), 404, "not-found")
                for changed in (
                    {"webhook_id": other.webhook["id"]},
                    {"delivery_id": "dlv_01920000000070008000000000000000"},
                )
            )
            assert moved == unknown


def test_an_agent_or_principal_that_is_not_the_caller_s_is_answered_like_one_that_does_not_exist(
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    holder: Callable[[str | None], Api],
) -> None:
    world = World(holder(tenant.root_key))
    theirs = World(holder(other_tenant.root_key)).pin
    unknown = {**world.pin, "agent_id": "agt_01920000000070008000000000000000"}
    elsewhere = {**world.pin, "principal": "bob@example.com"}
    another = {**world.pin, "agent_id": make_agent(world.api)["id"]}
    pinned = holder(world.key_text("write", "inside"))
    for caller, bodies in ((world.api, [theirs]), (pinned, [theirs, elsewhere, another])):
        expected = refused(caller.post("/v1/sessions", unknown), 404, "not-found")
        for body in bodies:
            assert refused(caller.post("/v1/sessions", body), 404, "not-found") == expected


def test_lists_show_a_pinned_key_its_own_and_a_stranger_nothing(
    database: Database, tenant: FreshTenant, holder: Callable[[str | None], Api]
) -> None:
    root = holder(tenant.root_key)
    world, _ = World(root), World(root)
    stranger = holder(tenants.create(database, MASTER_KEYS, "a tenant without anything")[1])
    inside = holder(world.key_text("read", "inside"))
    outside = holder(world.key_text("read", "outside"))
    for path, own in (
        ("/v1/agents", world.session["agent_id"]),
        ("/v1/sessions", world.session["id"]),
        ("/v1/records", world.record["id"]),
        ("/v1/findings", world.finding["id"]),
    ):
        seen = [row["id"] for row in inside.get(path).json["data"]]
        assert seen == [own], path
        assert own not in outside.get(path).text
        assert stranger.get(path).json["data"] == []
    for path in ("/v1/webhooks", "/v1/deliveries", "/v1/jobs", "/v1/events"):
        assert root.get(path).json["data"]
        assert stranger.get(path).json["data"] == []
