"""Agents over HTTP."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import NOBODY, make_agent, make_session, pin_of, pointers, refused

FULL = {"name": "a", "description": "what it does", "metadata": {"model": "m-4"}}


def test_an_agent_is_answered_alike_when_made_read_and_listed(api: ApiOf) -> None:
    made = make_agent(api(), **FULL)
    assert made.items() >= FULL.items()
    assert api().get(f"/v1/agents/{made['id']}").json == made
    assert api().get("/v1/agents").json["data"] == [made]


def test_what_is_not_sent_is_null(api: ApiOf) -> None:
    made = make_agent(api(), name="n")
    assert (made["description"], made["metadata"]) == (None, None)


def test_metadata_comes_back_as_the_same_value(api: ApiOf) -> None:
    metadata: dict[str, Any] = {
        "é\U0001f600": [1, 0.1, 1e300, -(2**53) + 1, None, True, {}],
        "\u0000": "\u0000",
        "": "",
    }
    made = make_agent(api(), metadata=metadata)
    assert made["metadata"] == metadata
    assert api().get(f"/v1/agents/{made['id']}").json["metadata"] == metadata


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"),
        ({"name": ""}, "/name"),
        ({"name": None}, "/name"),
        ({"name": 1}, "/name"),
        ({"name": "x" * 201}, "/name"),
        ({"name": "a\u0000b"}, "/name"),
        ({"name": "n", "description": 1}, "/description"),
        ({"name": "n", "description": "x" * 2001}, "/description"),
        ({"name": "n", "metadata": []}, "/metadata"),
        ({"name": "n", "metadata": "{}"}, "/metadata"),
        ({"name": "n", "metadata": {"x": "y" * 65536}}, "/metadata"),
        ({"name": "n", "id": "agt_" + NOBODY}, "/id"),
        ({"name": "n", "a/b~c": 1}, "/a~1b~0c"),
    ],
)
def test_a_wrong_field_is_refused_by_name(api: ApiOf, body: dict[str, Any], pointer: str) -> None:
    assert pointers(api().post("/v1/agents", body)) == [pointer]


def test_a_patch_changes_what_it_names_and_null_clears(api: ApiOf) -> None:
    made = make_agent(api(), **FULL)
    path = f"/v1/agents/{made['id']}"
    renamed = api().patch(path, {"name": "b"}).json
    assert {name for name in made if made[name] != renamed[name]} == {"name", "updated_at"}
    assert renamed["updated_at"] > made["updated_at"]
    cleared = api().patch(path, {"description": None, "metadata": None}).json
    assert (cleared["name"], cleared["description"], cleared["metadata"]) == ("b", None, None)
    assert api().get(path).json == cleared


@pytest.mark.parametrize("body", [{}, FULL])
def test_a_patch_that_changes_nothing_leaves_the_agent_untouched(
    api: ApiOf, body: dict[str, Any]
) -> None:
    made = make_agent(api(), **FULL)
    assert api().patch(f"/v1/agents/{made['id']}", body).json == made


def test_a_name_cannot_be_cleared(api: ApiOf) -> None:
    made = make_agent(api())
    assert pointers(api().patch(f"/v1/agents/{made['id']}", {"name": None})) == ["/name"]


def test_agents_are_listed_newest_first_in_pages_while_others_are_made(api: ApiOf) -> None:
    made = [make_agent(api(), name=str(number))["id"] for number in range(5)]
    first = api().get("/v1/agents?limit=2").json
    make_agent(api(), name="made in between")
    second = api().get(f"/v1/agents?limit=2&cursor={first['next_cursor']}").json
    third = api().get(f"/v1/agents?limit=2&cursor={second['next_cursor']}").json
    seen = [agent["id"] for page in (first, second, third) for agent in page["data"]]
    assert seen == made[::-1]
    assert third["next_cursor"] is None


@pytest.mark.parametrize("agent_id", ["agt_" + NOBODY, "agt_1", "ses_" + NOBODY, "%00", "AGT_0"])
def test_an_id_that_is_none_and_one_that_cannot_be_are_answered_alike(
    api: ApiOf, agent_id: str
) -> None:
    unknown = refused(api().get(f"/v1/agents/agt_{'1' * 32}"), 404, "not-found")
    assert refused(api().get(f"/v1/agents/{agent_id}"), 404, "not-found") == unknown
    changed = api().patch(f"/v1/agents/{agent_id}", {"name": "x"})
    assert refused(changed, 404, "not-found") == unknown


def test_a_stranger_finds_no_agent_and_changes_none(api: ApiOf, other_tenant: FreshTenant) -> None:
    made = make_agent(api())
    stranger = api(other_tenant.root_key)
    path = f"/v1/agents/{made['id']}"
    unknown = refused(stranger.get(f"/v1/agents/agt_{NOBODY}"), 404, "not-found")
    assert refused(stranger.get(path), 404, "not-found") == unknown
    assert refused(stranger.patch(path, {"name": "mine"}), 404, "not-found") == unknown
    assert stranger.get("/v1/agents").json["data"] == []
    assert api().get(path).json == made


def test_a_pinned_key_sees_its_own_agent_only(api: ApiOf, mint: Callable[..., str]) -> None:
    other = make_agent(api())
    session = make_session(api())
    pinned = api(mint("write", pin_of(session)))
    own = f"/v1/agents/{session['agent_id']}"
    assert [agent["id"] for agent in pinned.get("/v1/agents").json["data"]] == [session["agent_id"]]
    # The agent has other principals too.
    refused(pinned.patch(own, {"name": "mine"}), 403, "pinned-key")
    unknown = refused(pinned.get(f"/v1/agents/agt_{NOBODY}"), 404, "not-found")
    foreign = f"/v1/agents/{other['id']}"
    assert refused(pinned.get(foreign), 404, "not-found") == unknown
    refused(pinned.patch(foreign, {"name": "x"}), 403, "pinned-key")


def test_a_pinned_key_makes_no_agent(api: ApiOf, mint: Callable[..., str]) -> None:
    pinned = api(mint("write", pin_of(make_session(api()))))
    refused(pinned.post("/v1/agents", {"name": "another"}), 403, "pinned-key")


def test_a_reader_makes_and_changes_no_agent(api: ApiOf, mint: Callable[..., str]) -> None:
    made = make_agent(api())
    reader = api(mint("read"))
    refused(reader.post("/v1/agents", {"name": "n"}), 403, "insufficient-role")
    refused(reader.patch(f"/v1/agents/{made['id']}", {"name": "n"}), 403, "insufficient-role")


def test_agents_stay_out_of_the_audit_chain(api: ApiOf) -> None:
    before = api().get("/v1/audit/verify").json["entries"]
    made = make_agent(api())
    api().patch(f"/v1/agents/{made['id']}", {"name": "renamed"})
    assert api().get("/v1/audit/verify").json["entries"] == before


def test_a_repeated_post_with_the_same_idempotency_key_makes_one_agent(api: ApiOf) -> None:
    headers = {"Idempotency-Key": "agent-1"}
    first = api().post("/v1/agents", {"name": "n"}, headers=headers)
    again = api().post("/v1/agents", {"name": "n"}, headers=headers)
    assert again.json == first.json
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(api().get("/v1/agents").json["data"]) == 1
