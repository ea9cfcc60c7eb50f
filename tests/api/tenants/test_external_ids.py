"""Agents and sessions by the ids that their owners use: one each, however many ask."""

from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core import agents, feeds, sessions
from app.core.agents import NewAgent
from app.core.sessions import NewSession
from app.database import Database
from tests.support.callers.api import Answer, Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import (
    NOBODY,
    all_pages,
    make_agent,
    make_key,
    make_session,
    pin_of,
    pointers,
    refused,
)
from tests.support.database.plans import explained, indexes
from tests.support.faults import at_once

ODD = [
    ".",
    "..",
    "a\nb",
    "/a/",
    "a/b",
    "a//b",
    "/",
    "//",
    "%",
    "%2F",
    "é\U0001f600",
    " padded ",
    "x" * 500,
    "a?b#c",
    ";",
]
PRINCIPAL = "alice@example.com"

_MANY_AGENTS = text("""
INSERT INTO agents (tenant_id, id, external_id, name)
SELECT :tenant, gen_random_uuid(), 'x' || n, 'x' || n FROM generate_series(1, 2000) AS n
""")
_MANY_SESSIONS = text("""
INSERT INTO sessions (tenant_id, id, external_id, agent_id, principal, status)
SELECT :tenant, gen_random_uuid(), 'x' || n, :agent, 'p', 'open' FROM generate_series(1, 2000) AS n
""")


def put(api: Api, kind: str, external_id: str, body: dict[str, Any] | None = None) -> Answer:
    path = f"/v1/{kind}/by-external-id/{quote(external_id, safe='')}"
    return api.request("PUT", path, json=body or {})


@pytest.mark.parametrize("external_id", [*ODD, "é\U0001f600", "x" * 500])
def test_any_text_is_an_external_id(api: ApiOf, external_id: str) -> None:
    made = put(api(), "agents", external_id)
    assert made.status_code == 201, made.json
    assert made.json["external_id"] == external_id
    assert made.json["name"] == external_id[:200]
    assert (again := put(api(), "agents", external_id)).status_code == 200
    assert again.json == made.json
    session = {"agent_external_id": external_id, "principal": PRINCIPAL}
    opened = put(api(), "sessions", external_id, session)
    assert (opened.status_code, opened.json["agent_id"]) == (201, made.json["id"])
    assert put(api(), "sessions", external_id, session).json == opened.json


@pytest.mark.parametrize("external_id", ["x" * 501, "a\0b"])
@pytest.mark.parametrize("kind", ["agents", "sessions"])
def test_what_no_column_holds_is_refused(api: ApiOf, kind: str, external_id: str) -> None:
    body = {"agent_id": make_agent(api())["id"], "principal": "p"} if kind == "sessions" else {}
    assert pointers(put(api(), kind, external_id, body)) == ["/external_id"]


def test_a_put_sets_what_it_names_and_a_rename_is_audited(api: ApiOf) -> None:
    fields = {"name": "Loans", "version": "1", "description": "d", "metadata": {"a": 1}}
    made = put(api(), "agents", "loans", fields)
    assert made.json.items() >= (fields | {"external_id": "loans"}).items()
    newer = put(api(), "agents", "loans", {"version": "2"}).json
    assert {n for n in newer if newer[n] != made.json[n]} == {"version", "updated_at"}
    assert api().get("/v1/audit?action=agent.update").json["data"] == []
    assert put(api(), "agents", "loans", {"name": "Credit"}).json["name"] == "Credit"
    (entry,) = api().get("/v1/audit?action=agent.update").json["data"]
    assert entry["details"] == {"name": {"old": "Loans", "new": "Credit"}}
    assert entry["target"]["id"] == made.json["id"]


def test_a_post_and_a_patch_take_one_that_is_free(api: ApiOf) -> None:
    made = make_agent(api(), external_id="a", version="1")
    assert put(api(), "agents", "a").json == made
    other = make_agent(api())
    path = f"/v1/agents/{other['id']}"
    refused(api().post("/v1/agents", {"name": "n", "external_id": "a"}), 409, "external-id-in-use")
    refused(api().patch(path, {"external_id": "a"}), 409, "external-id-in-use")
    assert api().get(path).json == other
    assert api().patch(path, {"external_id": "b"}).json["external_id"] == "b"
    assert put(api(), "agents", "b").json["id"] == other["id"]
    session = make_session(api(), made["id"], external_id="s")
    body = {"agent_id": other["id"], "principal": "p", "external_id": "s"}
    refused(api().post("/v1/sessions", body), 409, "external-id-in-use")
    assert put(api(), "sessions", "s", pin_of(session)).json == session


def test_a_session_belongs_to_one_agent_and_principal(api: ApiOf) -> None:
    own = put(api(), "agents", "own").json["id"]
    named = {"agent_id": own, "principal": PRINCIPAL}
    opened = put(api(), "sessions", "s", named | {"title": "t", "metadata": {"a": 1}}).json
    for other in ({"agent_id": make_agent(api())["id"]}, {"principal": "bob"}):
        refused(put(api(), "sessions", "s", named | other), 409, "external-id-in-use")
    assert put(api(), "sessions", "s", named).json == opened
    assert put(api(), "sessions", "s", named | {"title": None}).json == opened | {"title": None}
    for unknown in ({"agent_external_id": "nobody"}, {"agent_id": f"agt_{NOBODY}"}):
        body = {"principal": PRINCIPAL} | unknown
        refused(put(api(), "sessions", "s", body), 404, "not-found")
    for wrong in ({}, {"agent_id": own, "agent_external_id": "own"}):
        assert pointers(put(api(), "sessions", "s", {"principal": "p"} | wrong)) == ["/agent_id"]


def test_a_pinned_key_gets_and_opens_sessions_under_its_pin_alone(api: ApiOf, mint: Mint) -> None:
    own = put(api(), "agents", "own").json["id"]
    put(api(), "agents", "foreign")
    pinned = api(mint("write", {"agent_id": own, "principal": PRINCIPAL}))
    opened = put(pinned, "sessions", "s", {"agent_external_id": "own", "principal": PRINCIPAL})
    assert opened.status_code == 201
    for body in (
        {"agent_external_id": "foreign", "principal": PRINCIPAL},
        {"agent_external_id": "own", "principal": "bob"},
    ):
        refused(put(pinned, "sessions", "t", body), 404, "not-found")


def test_another_tenant_has_external_ids_of_its_own(api: ApiOf, other_tenant: FreshTenant) -> None:
    mine, theirs = put(api(), "agents", "a"), put(api(other_tenant.root_key), "agents", "a")
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert mine.json["id"] != theirs.json["id"]


def test_of_many_puts_at_once_one_creates_and_all_get_it(api: ApiOf) -> None:
    made = at_once(8, lambda number: put(api(), "agents", "a", {"version": str(number)}))
    assert sorted(answer.status_code for answer in made) == [200] * 7 + [201]
    assert len({answer.json["id"] for answer in made}) == 1
    body = {"agent_external_id": "a", "principal": PRINCIPAL}
    opened = at_once(8, lambda _: put(api(), "sessions", "s", body))
    assert sorted(answer.status_code for answer in opened) == [200] * 7 + [201]
    assert len({answer.json["id"] for answer in opened}) == 1


def test_many_at_once_are_one_each_however_many_transactions_ask(
    database: Database, tenant: FreshTenant
) -> None:
    names = [f"agent {number:03}" for number in range(200)]

    def ask(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        order = names if number % 2 else names[::-1]
        with database.raw_transaction(tenant.id) as tx:
            known = agents.get_or_create(tx, tenant.id, [NewAgent(each, each) for each in order])
            new = [NewSession(each, known[each].id, PRINCIPAL, each) for each in order]
            return known, sessions.get_or_create(tx, tenant.id, new)

    first, *others = at_once(6, ask)
    assert all(each == first for each in others)
    assert len({each.id for each in first[0].values()}) == len(names)
    assert {each.status for each in first[1].values()} == {"open"}
    assert ask(0) == first
    with database.raw_transaction(tenant.id) as tx:
        assert agents.get_or_create(tx, tenant.id, []) == {}
        assert sessions.get_or_create(tx, tenant.id, []) == {}


def test_getting_many_sets_a_newer_version_and_never_a_name(
    database: Database, tenant: FreshTenant, api: ApiOf
) -> None:
    put(api(), "agents", "a", {"name": "Loans", "version": "1"})
    new = [NewAgent("a", "other"), NewAgent("b", "b", "1")]
    with database.transaction(tenant.id) as tx:
        known = agents.get_or_create(tx, tenant.id, new)
        assert (known["a"].name, known["a"].version) == ("Loans", "1")
        known = agents.get_or_create(tx, tenant.id, [NewAgent("a", "other", "2")])
        assert (known["a"].name, known["a"].version) == ("Loans", "2")
    found = put(api(), "agents", "a").json
    assert (found["name"], found["version"]) == ("Loans", "2")


def test_lists_filter_by_external_id_and_agents_by_name(api: ApiOf, mint: Mint) -> None:
    one, other = make_agent(api(), name="Loans", external_id="a"), make_agent(api(), name="Loans")
    make_agent(api(), name="loans")
    session = make_session(api(), one["id"], external_id="s")
    make_session(api(), one["id"])

    def listed(path: str, by: Api) -> list[str]:
        return [each["id"] for each in by.get(path).json["data"]]

    assert listed("/v1/agents?name=Loans", api()) == [other["id"], one["id"]]
    assert listed("/v1/agents?name=Loans&external_id=a", api()) == [one["id"]]
    assert listed("/v1/agents?external_id=b", api()) == []
    assert listed("/v1/sessions?external_id=s", api()) == [session["id"]]
    assert listed("/v1/sessions?external_id=t", api()) == []
    elsewhere = api(mint("read", pin_of(session) | {"agent_id": other["id"]}))
    assert listed("/v1/agents?name=Loans", elsewhere) == [other["id"]]
    assert listed("/v1/sessions?external_id=s", elsewhere) == []


def test_agents_are_found_by_words_of_their_names_and_both_by_external_ids(
    api: ApiOf, mint: Mint, other_tenant: FreshTenant
) -> None:
    agent = make_agent(api(), name="Loan Assessment (Spain)", external_id="urn:agents:17")
    session = make_session(api(), agent["id"], external_id="urn:runs:17")

    def hits(typed: str, by: Api) -> list[str]:
        found = by.get("/v1/search", query_string={"q": typed}).json["data"]
        return [each["id"] for each in found]

    for typed in ("loan", "SPAIN assess", '"loan"', "urn:agents:17"):
        assert hits(typed, api()) == [agent["id"]], typed
    assert hits("urn:runs:17", api()) == [session["id"]]
    assert hits("loan france", api()) == []
    strangers = [
        api(other_tenant.root_key),
        api(mint("read", pin_of(session) | {"agent_id": make_agent(api())["id"]})),
    ]
    for stranger in strangers:
        assert hits("loan", stranger) == hits("urn:runs:17", stranger) == []
    assert hits("loan", api(mint("read", pin_of(session)))) == [agent["id"]]


def test_a_filter_reads_its_own_rows_alone(
    api: ApiOf, tenant: FreshTenant, admin_engine: Engine
) -> None:
    made = ids.read("agt", make_agent(api())["id"])
    with admin_engine.connect() as connection:
        # Over a few rows every index costs the same.
        of = {"tenant": tenant.id, "agent": made}
        connection.execute(_MANY_AGENTS, of)
        connection.execute(_MANY_SESSIONS, of)
        connection.execute(text("ANALYZE agents, sessions"))
        for table, column in (
            ("agents", "external_id"),
            ("agents", "name"),
            ("sessions", "external_id"),
        ):
            plan = explained(
                connection,
                f"SELECT * FROM {table} WHERE tenant_id = '{tenant.id}' AND {column} = 'x7'"
                " ORDER BY id DESC LIMIT 51",
            )
            assert [f"{table}_{column}"] == [*indexes(plan)]
            assert plan[-1]["Actual Rows"] == 1
        connection.rollback()


def test_parts_of_names_find_agents_sessions_and_keys(api: ApiOf, mint: Mint) -> None:
    desk = make_agent(api(), name="Refund Desk 100%", external_id="desk-7")
    make_agent(api(), name="Refund counter", external_id="counter_7")
    run = make_session(api(), desk["id"], title="Pay back", external_id="chat/4711")
    make_session(api(), principal="bob@example.com")
    key = make_key(api(), name="refund-deploy")

    def found(path: str, q: str, key_text: str | None = None) -> list[str]:
        caller = api() if key_text is None else api(key_text)
        answer = caller.get(path, query_string={"q": q})
        assert answer.json["next_cursor"] is None
        return [each["id"] for each in answer.json["data"]]

    for q in ("fund desk", "DESK-7 refund", "100%", "k 1"):
        assert found("/v1/agents", q) == [desk["id"]], q
    for q in ("_", "\\", "desk_7", "desk plum"):
        assert desk["id"] not in found("/v1/agents", q), q
    for q in ("PAY", "4711 alice"):
        assert found("/v1/sessions", q) == [run["id"]], q
    assert found("/v1/keys", "DEPLOY") == [key["id"]]
    pinned = mint("read", pin_of(run))
    assert found("/v1/agents", "refund", pinned) == [desk["id"]]
    assert found("/v1/sessions", "bob", pinned) == found("/v1/keys", "deploy", pinned) == []
    both = api().get(f"/v1/sessions?q=pay&status=completed&agent_id={desk['id']}")
    assert both.json["data"] == []


def test_a_search_by_names_reads_so_many_for_a_page_and_goes_on_behind_them(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MOST_NAMES", 3)
    made = [make_agent(api(), name=f"{'pear' if n % 4 == 0 else 'plum'} {n}") for n in range(9)]
    first = api().get("/v1/agents?q=pear").json
    assert [each["name"] for each in first["data"]] == ["pear 8"]
    assert [each["id"] for each in all_pages(api(), "/v1/agents?q=pear")] == [
        made[n]["id"] for n in (8, 4, 0)
    ]
    assert len(all_pages(api(), "/v1/agents?q=pl&limit=1")) == 6
