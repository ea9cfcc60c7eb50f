"""The audit chain over HTTP: entries, pages, filters, who may read it."""

import json
from urllib.parse import quote

import pytest
from sqlalchemy import Engine

from app.ledger import hash_chain
from tests.api.audit.chains import (
    _execute,
    change_settings,
    check_chain,
    entries,
    export,
    numbers,
)
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import pointers, refused, shifted

pytestmark = pytest.mark.usefixtures("forgotten")


def test_a_chain_begins_with_its_tenant_and_root_key(api: ApiOf) -> None:
    first, second = entries(api(), "order=asc")
    assert (first["action"], second["action"]) == ("tenant.create", "key.mint")
    assert first["actor"] == {"type": "operator", "id": "manage"}


def test_listed_and_exported_entries_verify_with_another_implementation(api: ApiOf) -> None:
    change_settings(api(), 3)
    check_chain(entries(api(), "order=asc"))
    check_chain(export(api())[:-1])


def test_newest_first_unless_asked_otherwise(api: ApiOf) -> None:
    change_settings(api(), 3)
    assert numbers(api()) == [5, 4, 3, 2, 1]
    assert numbers(api(), "order=desc") == [5, 4, 3, 2, 1]
    assert numbers(api(), "order=asc") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_in_either_order_hold_every_entry_once_while_others_are_appended(
    api: ApiOf, order: str
) -> None:
    change_settings(api(), 5)
    seen: list[int] = []
    path: str | None = f"/v1/audit?limit=2&order={order}"
    while path:
        page = api().get(path).json
        seen += [entry["seq"] for entry in page["data"]]
        if len(seen) < 5:
            change_settings(api(), 1)
        path = page["next_cursor"] and (
            f"/v1/audit?limit=2&order={order}&cursor={quote(page['next_cursor'])}"
        )
    expected = list(range(1, 8))
    if order == "asc":
        assert seen[:7] == expected
        assert seen == list(range(1, len(seen) + 1))
    else:
        assert seen == expected[::-1]


def test_the_chain_is_filtered_by_action_and_time(api: ApiOf) -> None:
    change_settings(api(), 3)
    assert numbers(api(), "action=settings.update") == [5, 4, 3]
    assert numbers(api(), "action=no.such") == []
    at = entries(api())[1]["at"]
    assert numbers(api(), f"since={shifted(at, 0)}") == [5, 4]
    assert numbers(api(), f"since={shifted(at, 1)}") == [5]
    assert numbers(api(), f"until={shifted(at, 0)}") == [3, 2, 1]
    assert numbers(api(), f"until={shifted(at, 1)}&order=asc") == [1, 2, 3, 4]
    assert numbers(api(), f"until={shifted(at, 1)}&action=settings.update") == [4, 3]
    assert numbers(api(), "until=1970-01-01T00:00:00Z") == []
    assert numbers(api(), "since=9999-12-31T23:59:59Z") == []
    assert numbers(api(), "since=0001-01-01T00:00:00Z&limit=1") == [5]


@pytest.mark.parametrize("query", ["order=up", "action=", "since=now", "seq=1", "limit=201"])
def test_a_wrong_filter_is_refused_by_name(api: ApiOf, query: str) -> None:
    assert pointers(api().get(f"/v1/audit?{query}")) == ["/" + query.partition("=")[0]]


_NAMELESS = json.dumps(dict.fromkeys(sorted(hash_chain.MEMBERS)))


@pytest.mark.parametrize("body", ["", "null", "[1]", "\\xff", "{}", _NAMELESS])
def test_a_page_with_an_entry_that_cannot_be_read_is_a_broken_chain_and_no_crash(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant, body: str
) -> None:
    change_settings(api(), 2)
    _execute(
        admin_engine,
        tenant,
        "UPDATE audit_entries SET body = CAST(:body AS bytea)"
        " WHERE tenant_id = :tenant AND seq = 3",
        body=body,
    )
    assert refused(api().get("/v1/audit"), 409, "audit-chain-broken")["seq"] == 3
    assert numbers(api(), "limit=1") == [4]


def test_a_reader_lists_exports_and_verifies(api: ApiOf, mint: Mint) -> None:
    reader = api(mint("read"))
    assert numbers(reader) == [3, 2, 1]
    assert export(reader)[-2]["actor"]["role"] == "read"
    assert reader.get("/v1/audit/verify").json["entries"] == 4


def test_a_stranger_sees_a_chain_of_its_own(api: ApiOf, other_tenant: FreshTenant) -> None:
    change_settings(api(), 3)
    stranger = api(other_tenant.root_key)
    assert numbers(stranger) == [2, 1]
    cursor = api().get("/v1/audit?limit=1").json["next_cursor"]
    assert pointers(stranger.get(f"/v1/audit?limit=1&cursor={cursor}")) == ["/cursor"]
