"""The audit chain over HTTP: pages, filters and exports."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, text

from app.errors import LogDamaged
from app.ledger import hash_chain
from app.lib import canonical_json
from tests.api.audit.chains import (
    NDJSON,
    _execute,
    change_settings,
    check_chain,
    entries,
    export,
    numbers,
)
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import all_pages, pointers, refused, revoke, shifted
from tests.support.evidence.verifying import answer as answer_of

pytestmark = pytest.mark.usefixtures("forgotten")


def test_a_chain_begins_with_its_tenant_and_root_key(api: ApiOf) -> None:
    first, second = entries(api(), "order=asc")
    assert (first["action"], second["action"]) == ("tenant.create", "key.mint")
    assert first["actor"] == {"type": "operator", "id": "manage"}
    assert (first["outcome"], first["origin"]) == ("success", None)


def test_listed_and_exported_entries_verify_with_another_implementation(api: ApiOf) -> None:
    change_settings(api(), 3)
    check_chain(entries(api(), "order=asc"))
    check_chain(export(api())[:-1])


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


@pytest.mark.parametrize(
    "query",
    [
        "actor=made up",
        "actor=key_1",
        "target=whk_1",
        "target=plum",
    ],
)
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


def test_an_export_ends_with_its_own_entry_and_a_trailer(api: ApiOf) -> None:
    change_settings(api(), 3)
    *chain, trailer = export(api())
    assert chain[-1]["action"] == "audit.export"
    assert trailer == {
        "type": "trailer",
        "entries": len(chain),
        "after": {"seq": 0, "hash": "0" * 64},
        "head": {"seq": len(chain), "hash": chain[-1]["hash"]},
        "anchors": [],
        "anchors_total": 0,
    }
    assert api().get("/v1/audit/verify").json["head"] == trailer["head"]


def test_what_is_appended_while_an_export_streams_is_not_in_it(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 2)
    change_settings(api(), 5)
    answer = api().get("/v1/audit", headers=NDJSON, buffered=False)
    stream = answer.iter_encoded()
    received = next(stream)
    change_settings(api(), 3)
    received += b"".join(stream)
    *chain, trailer = map(json.loads, received.splitlines())
    check_chain(chain)
    assert trailer["entries"] == len(chain) == 8


def test_an_export_takes_times_and_no_other_filters(api: ApiOf) -> None:
    answer = api().get("/v1/audit?action=key.mint&limit=1", headers=NDJSON)
    assert sorted(pointers(answer)) == ["/action", "/limit"]
    moment = "2026-01-31T12:00:00Z"
    answer = api().get(f"/v1/audit?since={moment}&until={moment}", headers=NDJSON)
    assert pointers(answer) == ["/until"]
    assert pointers(api().get("/v1/audit?layout=events")) == ["/layout"]
    assert numbers(api(), "action=audit.export") == []


def test_an_export_of_a_range_says_between_which_heads_it_is(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 2)
    change_settings(api(), 9)
    whole = entries(api(), "order=asc")
    since, until = f"since={whole[3]['at']}", f"until={whole[8]['at']}"
    part: list[dict[str, Any]] = []
    for query, last in ((f"{since}&{until}", 8), (since, 13)):
        answer = api().get(f"/v1/audit?{query}", headers=NDJSON)
        *part, trailer = map(json.loads, answer.data.splitlines())
        assert [each["seq"] for each in part] == list(range(4, last + 1))
        assert trailer["after"] == {"seq": 3, "hash": whole[2]["hash"]}
        assert trailer["head"] == {"seq": last, "hash": part[-1]["hash"]}
        assert trailer["entries"] == len(part)
        (tmp_path / "part").write_bytes(answer.data)
        checked = answer_of("audit", tmp_path / "part")
        assert checked.code == 0, checked.text
    assert part[-1]["details"] == {"since": whole[3]["at"]}
    *none, trailer = export(api(), "since=2999-01-01T00:00:00Z&until=3000-01-01T00:00:00Z")
    assert (none, trailer["after"]["seq"], trailer["head"]["seq"]) == ([], 14, 14)
    *none, trailer = export(api(), f"until={whole[0]['at']}")
    assert (none, trailer["head"]) == ([], {"seq": 0, "hash": "0" * 64})


def test_a_flat_event_says_all_of_its_entry_and_begins_with_its_time(api: ApiOf) -> None:
    change_settings(api(), 2)
    lines = api().get("/v1/audit?layout=events", headers=NDJSON).data.splitlines()
    assert all(line.startswith(b'{"at":"2') for line in lines)
    *events, trailer = map(json.loads, lines)
    chain = entries(api(), "order=asc")
    assert not any(isinstance(value, dict | list) for each in events for value in each.values())
    for event, entry in zip(events, chain, strict=True):
        assert event["details"] == canonical_json.dumps(entry["details"]).decode()
        same = ("at", "seq", "action", "outcome", "origin", "request_id", "tenant_id", "hash")
        assert {name: event[name] for name in same} == {name: entry[name] for name in same}
        assert (event["actor_id"], event["target_id"]) == (
            entry["actor"]["id"],
            entry["target"]["id"],
        )
    assert (trailer["type"], trailer["entries"]) == ("trailer", len(events))
    assert (trailer["head_seq"], trailer["head_hash"]) == (len(events), events[-1]["hash"])
    assert events[-1]["details"] == '{"layout":"events"}'


def test_the_chain_is_filtered_by_actor_target_outcome_and_how_an_action_begins(
    api: ApiOf, mint: Mint
) -> None:
    reader = mint("read")
    key_id = api(reader).get("/v1/keys/self").json["id"]
    change_settings(api(), 2)
    assert api(reader).patch("/v1/tenant/settings", {}).status_code == 403
    assert api(reader).get("/v1/audit").status_code == 200
    root = api().get("/v1/keys/self").json["id"]
    for order in ("asc", "desc"):
        by = f"&order={order}"

        def found(query: str, by: str = by) -> list[str]:
            return sorted(each["action"] for each in entries(api(), query + by))

        assert found(f"actor={key_id}") == ["access.refused"]
        assert found(f"target={key_id}") == ["key.mint"]
        assert found("outcome=refused") == ["access.refused"]
        assert found(f"actor={root}&action=settings") == ["settings.update"] * 2
        assert found("action=key.") == ["key.mint"] * 2
        assert found("action=key.mint") == ["key.mint"] * 2
        assert found("action=k&limit=1") == ["key.mint"]
        assert found("action=%25") == found("action=nothing") == []
        assert found("outcome=success&action=tenant") == ["tenant.create"]
    both = all_pages(api(), "/v1/audit?limit=1&action=k")
    assert [each["action"] for each in both] == ["key.mint"] * 2


def test_an_export_of_a_chain_with_a_hole_breaks_off_before_it(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 2)
    change_settings(api(), 3)
    _execute(
        admin_engine,
        tenant,
        "DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = 3",
    )
    stream = api().get("/v1/audit", headers=NDJSON, buffered=False).iter_encoded()
    check_chain([json.loads(line) for line in next(stream).splitlines()])
    assert list(stream) == [], "no trailer: it is not whole"


def test_an_export_that_breaks_off_under_way_is_told_once_with_its_request(
    api: ApiOf,
    admin_engine: Engine,
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 2)
    change_settings(api(), 3)
    _execute(
        admin_engine,
        tenant,
        "UPDATE audit_entries SET body = '[1]' WHERE tenant_id = :tenant AND seq = 3",
    )
    capsys.readouterr()
    answer = api().get("/v1/audit", headers=NDJSON | {"X-Request-ID": "an-export"})
    assert [json.loads(line)["seq"] for line in answer.data.splitlines()] == [1, 2]
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (told,) = [line for line in said if line["level"] not in ("info", "debug")]
    assert (told["event"], told["level"]) == ("audit_chain_broken", "critical")
    assert (told["request_id"], told["seq"], told["reason"]) == ("an-export", 3, "not_json")
    with admin_engine.connect() as connection:
        kept = connection.execute(
            text("SELECT seq, reason FROM audit_breaks WHERE tenant_id = :tenant"),
            {"tenant": tenant.id},
        )
        assert [tuple(row) for row in kept] == [(3, "not_json")]


def test_what_else_ends_an_export_is_logged_and_never_a_whole_one(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> bytes:
        raise LogDamaged("An anchor's leaf is missing in the log.")

    monkeypatch.setattr("app.core.verification.export.trailer", fails)
    capsys.readouterr()
    answer = api().get("/v1/audit", headers=NDJSON | {"X-Request-ID": "an-export"})
    check_chain([json.loads(line) for line in answer.data.splitlines()])
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (told,) = [line for line in said if line["event"] == "response_truncated"]
    assert (told["request_id"], told["problem"]) == ("an-export", LogDamaged.slug)


def test_head_exports_nothing_and_appends_nothing(api: ApiOf) -> None:
    answer = api().request("HEAD", "/v1/audit", headers=NDJSON)
    assert (answer.status_code, answer.content_type, answer.data) == (200, NDJSON["Accept"], b"")
    assert numbers(api(), "action=audit.export") == []


def test_an_export_that_cannot_even_begin_is_answered_as_a_broken_chain(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant
) -> None:
    _execute(
        admin_engine, tenant, "DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = 1"
    )
    answer = api().get("/v1/audit", headers=NDJSON)
    assert refused(answer, 409, "audit-chain-broken")["seq"] == 1


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html", "text/*;q=0.1"])
def test_other_accept_headers_get_a_page_and_export_nothing(api: ApiOf, accept: str) -> None:
    answer = api().get("/v1/audit", headers={"Accept": accept})
    assert answer.content_type == "application/json"
    assert numbers(api(), "action=audit.export") == []


def test_an_export_has_no_trailer_once_its_key_is_revoked(
    api: ApiOf, mint: Mint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 2)
    change_settings(api(), 5)
    key = mint("read")
    stream = api(key).get("/v1/audit", headers=NDJSON, buffered=False).iter_encoded()
    next(stream)
    revoke(api, key)
    assert list(stream) == []
