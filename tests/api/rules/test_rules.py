"""Rules as their owners write them: refused with a place, versioned, audited."""

from typing import Any

import pytest

from tests.api.rules.conftest import RULE, Ruled
from tests.support.callers.making import pointers, refused

REFUSED = [
    ({"when": "recrod.kind == 'a'"}, "/when", 1, 1, "`recrod` is not declared; `record` is."),
    (
        {"when": "true &&\n  record.knd == 'a'"},
        "/when",
        2,
        10,
        "`knd` is no field of record; `kind`",
    ),
    ({"when": "record.kind =="}, "/when", 1, 15, "Syntax error"),
    ({"when": "record.title"}, None, None, None, None),
    ({"when": "size(steps)"}, "/when", 1, 1, "This gives int; send one that gives bool."),
    ({"when": "1 + 'a' == 2"}, "/when", 1, 3, "no matching overload"),
    (
        {"title": "{{record.titel}} x"},
        "/title",
        1,
        10,
        "`titel` is no field of record; `title` is.",
    ),
    ({"title": "{{record.title x"}, "/title", 1, 1, "Close this expression"),
    ({"dedupe": "size(steps)"}, "/dedupe", 1, 1, "This gives int; send one that gives string."),
    ({"detail": "of {{session.id}}"}, "/detail", 1, 6, "`session` is not declared"),
    ({"on": "step", "when": "content.a == 1"}, "/when", 1, 1, "`content` is not declared"),
    ({"on": "session", "when": "session.recrods > 1"}, "/when", 1, 9, "`records` is."),
    ({"when": "!" * 9_000 + "("}, "/when", None, None, ""),
    ({"when": "(" * 5_000}, "/when", None, None, ""),
]


@pytest.mark.parametrize(("fields", "pointer", "line", "column", "says"), REFUSED)
def test_what_does_not_compile_is_refused_with_its_place(
    ruled: Ruled, fields: dict[str, Any], pointer: str | None, line: int, column: int, says: str
) -> None:
    answer = ruled.api.post("/v1/rules", RULE | {"title": "t"} | fields)

    if pointer is None:
        # Maps have values of any type, so this is only known when it is evaluated.
        assert answer.status_code == 201
        return
    (error,) = refused(answer, 422, "validation-failed")["errors"]
    assert error["pointer"] == pointer
    assert says in error["detail"]
    if line is not None:
        assert (error["line"], error["column"]) == (line, column)
    assert ruled.api.get("/v1/rules").json["data"] == []
    # Another rule is checked by the same process, or by the next one.
    assert ruled.rule(name="good")["state"] == "on"


def test_a_patch_and_a_test_are_refused_alike(ruled: Ruled) -> None:
    rule = ruled.rule()

    patched = ruled.api.patch(f"/v1/rules/{rule['id']}", {"when": "recrod.kind == 'a'"})
    other = ruled.api.patch(f"/v1/rules/{rule['id']}", {"on": "step"})
    tried = ruled.api.post("/v1/rules/test", {"on": "record", "when": "recrod == 1", "title": "a"})

    for answer in (patched, tried):
        (error,) = refused(answer, 422, "validation-failed")["errors"]
        assert (error["pointer"], error["line"], error["column"]) == ("/when", 1, 1)
    assert pointers(other) == ["/when", "/title"]
    assert ruled.read(rule) == rule


def test_a_rule_is_created_read_listed_and_changed(ruled: Ruled) -> None:
    rule = ruled.rule(detail="d", dedupe="record.id", max_per_hour=7)

    assert rule == RULE | {
        "id": rule["id"],
        "detail": "d",
        "dedupe": "record.id",
        "max_per_hour": 7,
        "version": 1,
        "state": "on",
        "last_error": None,
        "matches": {"hour": 0, "day": 0},
        "created_at": rule["created_at"],
        "updated_at": rule["updated_at"],
    }
    assert ruled.read(rule) == rule
    assert ruled.api.get("/v1/rules").json["data"] == [rule]

    off = ruled.change(rule, enabled=False)
    assert (off["version"], off["state"]) == (1, "off")
    second = ruled.change(rule, when="content.amount > 5", detail=None)
    assert (second["version"], second["when"], second["detail"]) == (2, "content.amount > 5", None)
    assert ruled.change(rule, when="content.amount > 5")["version"] == 2
    same = ruled.api.get(f"/v1/rules/{rule['id']}/versions").json["data"]
    assert [(each["version"], each["when"]) for each in same] == [
        (2, "content.amount > 5"),
        (1, "content.amount > 1000"),
    ]
    assert all(each["created_by"].startswith("key_") for each in same)


def test_names_are_unique_until_their_rule_is_deleted(ruled: Ruled) -> None:
    rule = ruled.rule()
    other = ruled.rule(name="other")

    refused(ruled.api.post("/v1/rules", RULE), 409, "rule-name-in-use")
    path = f"/v1/rules/{other['id']}"
    refused(ruled.api.patch(path, {"name": RULE["name"]}), 409, "rule-name-in-use")
    assert ruled.api.delete(f"/v1/rules/{rule['id']}").status_code == 204

    refused(ruled.api.get(f"/v1/rules/{rule['id']}"), 404, "not-found")
    refused(ruled.api.delete(f"/v1/rules/{rule['id']}"), 404, "not-found")
    assert ruled.rule()["id"] != rule["id"]
    kept = ruled.api.get(f"/v1/rules/{rule['id']}/versions").json["data"]
    assert [each["name"] for each in kept] == [RULE["name"]]


def test_every_change_is_in_the_audit_chain_with_both_versions(ruled: Ruled) -> None:
    rule = ruled.rule()
    ruled.change(rule, when="content.amount > 5", enabled=False)
    ruled.change(rule, enabled=True)
    ruled.change(rule, enabled=True)
    span = {"since": "2026-01-01T00:00:00Z", "until": rule["created_at"]}
    assert ruled.api.post(f"/v1/rules/{rule['id']}/backfill", span).status_code == 202
    ruled.api.delete(f"/v1/rules/{rule['id']}")

    entries = ruled.api.get("/v1/audit?order=asc&limit=200").json["data"]
    ours = [each for each in entries if each["action"].startswith("rule.")]
    assert [each["action"] for each in ours] == [
        "rule.create",
        "rule.update",
        "rule.disable",
        "rule.enable",
        "rule.backfill",
        "rule.delete",
    ]
    assert {each["target"]["id"] for each in ours} == {rule["id"]}
    assert ours[0]["details"]["new"]["when"] == RULE["when"]
    assert ours[1]["details"] == {
        "old": {"version": 1, "when": RULE["when"]},
        "new": {"version": 2, "when": "content.amount > 5"},
    }
    assert ours[3]["details"] == {"version": 2}
