"""The tenant's settings: strict, audited, and silent about the address."""

from threading import Barrier, Thread
from typing import Any

import pytest

from tests.support.callers.api import Api, ApiOf
from tests.support.callers.making import pointers

PATH = "/v1/tenant/settings"
DEFAULTS = {
    "bundle_visibility": "private",
    "bundle_retention_days": None,
    "anchoring_enabled": True,
    "notification_email": None,
}


def updates(api: Api) -> list[dict[str, Any]]:
    return list(api.get("/v1/audit?action=settings.update&order=asc").json["data"])


def test_all_four_have_defaults_change_and_are_read_back(api: ApiOf) -> None:
    answer = api().get(PATH)
    assert (answer.status_code, answer.json) == (200, DEFAULTS)
    wanted = {
        "bundle_visibility": "public",
        "bundle_retention_days": 3650,
        "anchoring_enabled": False,
        "notification_email": "security@example.com",
    }
    assert api().patch(PATH, wanted).json == wanted
    assert api().get(PATH).json == wanted
    cleared = {"bundle_retention_days": None, "notification_email": None}
    assert api().patch(PATH, cleared).json == wanted | cleared


def test_fields_not_sent_stay(api: ApiOf) -> None:
    api().patch(PATH, {"bundle_retention_days": 30, "anchoring_enabled": False})
    answer = api().patch(PATH, {"bundle_visibility": "public"})
    assert answer.json == DEFAULTS | {
        "bundle_visibility": "public",
        "bundle_retention_days": 30,
        "anchoring_enabled": False,
    }


def test_each_change_is_one_entry_with_old_and_new_values(api: ApiOf) -> None:
    api().patch(PATH, {"bundle_visibility": "public", "bundle_retention_days": 30})
    answer = api().patch(PATH, {"bundle_retention_days": 60, "bundle_visibility": "public"})
    first, second = updates(api())
    assert first["details"] == {
        "bundle_visibility": {"old": "private", "new": "public"},
        "bundle_retention_days": {"old": None, "new": 30},
    }
    assert second["details"] == {"bundle_retention_days": {"old": 30, "new": 60}}
    assert second["request_id"] == answer.headers["x-request-id"]
    assert second["target"] == {"type": "tenant", "id": second["tenant_id"]}


def test_the_chain_says_that_the_address_changed_and_never_the_address(api: ApiOf) -> None:
    for address in ("first@example.com", "second@example.com", None):
        assert api().patch(PATH, {"notification_email": address}).status_code == 200
    entries = updates(api())
    assert [entry["details"] for entry in entries] == [
        {"notification_email": {"change": "set"}},
        {"notification_email": {"change": "changed"}},
        {"notification_email": {"change": "cleared"}},
    ]
    assert "example.com" not in api().get("/v1/audit").text


@pytest.mark.parametrize("body", [{}, {"anchoring_enabled": True}, DEFAULTS])
def test_a_patch_that_changes_nothing_leaves_no_entry(api: ApiOf, body: dict[str, Any]) -> None:
    assert api().patch(PATH, body).json == DEFAULTS
    assert updates(api()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bundle_visibility", "secret"),
        ("bundle_visibility", None),
        ("bundle_visibility", 1),
        ("bundle_retention_days", 0),
        ("bundle_retention_days", 3651),
        ("bundle_retention_days", -1),
        ("bundle_retention_days", "30"),
        ("bundle_retention_days", True),
        ("bundle_retention_days", 1.5),
        ("bundle_retention_days", 2**53 - 1),
        ("anchoring_enabled", "true"),
        ("anchoring_enabled", 1),
        ("anchoring_enabled", None),
        ("notification_email", ""),
        ("notification_email", 7),
        ("notification_email", ["a@example.com"]),
        ("name", "another name"),
        ("id", "ten_0"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_nothing_changes(
    api: ApiOf, field: str, value: object
) -> None:
    body = {"bundle_retention_days": 7, "anchoring_enabled": False} | {field: value}
    assert pointers(api().patch(PATH, body)) == [f"/{field}"]
    assert api().get(PATH).json == DEFAULTS
    assert updates(api()) == []


@pytest.mark.parametrize(
    "address",
    [
        "nobody",
        "a@localhost",
        "@example.com",
        "a@",
        "a@@example.com",
        "Alice <a@example.com>",
        "<a@example.com>",
        "a@example.com, b@example.com",
        "a@example.com;b@example.com",
        "a@example.com\r\nBcc: b@example.com",
        "a@example.com\n",
        " a@example.com",
        "a b@example.com",
        '"a b"@example.com',
        "a..b@example.com",
        ".a@example.com",
        "a@[127.0.0.1]",
        "a@192.0.2.1",
        "a@example.com.",
        "a@-example.com",
        "a@exam_ple.com",
        "a@example.com\u0000",
        "ä@example.com",
        "a@b\u00fccher.example",
        "x" * 65 + "@example.com",
        "a@" + ("x" * 60 + ".") * 4 + "example.com",
    ],
)
def test_what_is_not_one_plain_address_is_refused(api: ApiOf, address: str) -> None:
    answer = api().patch(PATH, {"notification_email": address})
    assert pointers(answer) == ["/notification_email"]
    if "\u00fc" in address:
        assert "xn--" in answer.json["errors"][0]["detail"]


@pytest.mark.parametrize(
    "address", ["o'neil+digest@mail.example.co.uk", "a@xn--bcher-kva.example", "1@2.x3"]
)
def test_plain_addresses_are_kept_as_they_were_sent(api: ApiOf, address: str) -> None:
    answer = api().patch(PATH, {"notification_email": address})
    assert answer.json["notification_email"] == address


def test_concurrent_changes_leave_a_chain_whose_old_values_are_those_replaced(api: ApiOf) -> None:
    start = Barrier(6)

    def change(days: int) -> None:
        start.wait()
        assert api().patch(PATH, {"bundle_retention_days": days}).status_code == 200

    threads = [Thread(target=change, args=(days,)) for days in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changes = [entry["details"]["bundle_retention_days"] for entry in updates(api())]
    assert [change["old"] for change in changes] == [None, *[c["new"] for c in changes[:-1]]]
    assert len(changes) == 6
    assert api().get(PATH).json["bundle_retention_days"] == changes[-1]["new"]
