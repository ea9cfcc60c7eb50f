"""Agents over HTTP."""

from typing import Any

from tests.support.callers.api import Api, ApiOf
from tests.support.callers.making import make_agent, pointers

FULL = {"name": "a", "description": "what it does", "metadata": {"model": "m-4"}}


def test_an_agent_is_answered_alike_when_made_read_and_listed(api: ApiOf) -> None:
    made = make_agent(api(), **FULL)
    assert made.items() >= FULL.items()
    assert api().get(f"/v1/agents/{made['id']}").json == made
    assert api().get("/v1/agents").json["data"] == [made]
    bare = make_agent(api(), name="n")
    assert (bare["description"], bare["metadata"]) == (None, None)


def test_metadata_comes_back_as_the_same_value(api: ApiOf) -> None:
    metadata: dict[str, Any] = {
        "é\U0001f600": [1, 0.1, 1e300, -(2**53) + 1, None, True, {}],
        "\u0000": "\u0000",
        "": "",
    }
    made = make_agent(api(), metadata=metadata)
    assert made["metadata"] == metadata
    assert api().get(f"/v1/agents/{made['id']}").json["metadata"] == metadata


def test_a_patch_changes_what_it_names_and_null_clears(api: ApiOf) -> None:
    made = make_agent(api(), **FULL)
    path = f"/v1/agents/{made['id']}"
    renamed = api().patch(path, {"name": "b"}).json
    assert {name for name in made if made[name] != renamed[name]} == {"name", "updated_at"}
    assert renamed["updated_at"] > made["updated_at"]
    cleared = api().patch(path, {"description": None, "metadata": None}).json
    assert (cleared["name"], cleared["description"], cleared["metadata"]) == ("b", None, None)
    assert pointers(api().patch(path, {"name": None})) == ["/name"]
    assert api().patch(path, {}).json == api().patch(path, {"name": "b"}).json == cleared


def updates(api: Api) -> list[dict[str, Any]]:
    """The entries of the audit chain that tell of agents, oldest first."""
    entries = api.get("/v1/audit?action=agent.update").json["data"]
    return sorted(entries, key=lambda entry: int(entry["seq"]))


def test_a_rename_is_audited_with_the_old_and_the_new_name(api: ApiOf) -> None:
    agent = make_agent(api(), name="Loans")
    path = f"/v1/agents/{agent['id']}"
    for body in ({"name": "Loans"}, {"description": "d"}, {"metadata": {"a": 1}}, {}):
        assert api().patch(path, body).status_code == 200
    assert updates(api()) == []
    for name in ("Innocent", "Loans"):
        assert api().patch(path, {"name": name, "description": name}).json["name"] == name
    first, second = updates(api())
    assert first["target"] == {"type": "agent", "id": agent["id"]}
    assert first["actor"]["type"] == "key"
    assert first["details"] == {"name": {"old": "Loans", "new": "Innocent"}}
    assert second["details"] == {"name": {"old": "Innocent", "new": "Loans"}}
    assert api().get("/v1/audit/verify").json["status"] == "intact"
