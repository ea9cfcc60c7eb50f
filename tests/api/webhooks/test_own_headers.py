"""Headers of the receiver's own: what is taken, replaced, kept, shown and audited."""

from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.api.webhooks.audited import actions
from tests.support.callers.api import ApiOf, Mint
from tests.support.callers.sending import URL, make_webhook

BEARER = "Bearer s3cr3t-of-the-receiver"
HIDDEN = "***"


def errors(answer: Any) -> list[str]:
    assert answer.status_code == 422, answer.json
    assert "s3cr3t" not in answer.text
    return [each["pointer"] for each in answer.json["errors"]]


def test_names_are_shown_and_values_never(api: ApiOf, mint: Mint) -> None:
    made = make_webhook(api(), headers={"Authorization": BEARER, "X-Env": "a b"})
    shown = {"Authorization": HIDDEN, "X-Env": HIDDEN}

    assert made["headers"] == shown
    for role in ("read", "write", "admin"):
        assert api(mint(role)).get(f"/v1/webhooks/{made['id']}").json["headers"] == shown
        assert api(mint(role)).get("/v1/webhooks").json["data"][0]["headers"] == shown
    (created,) = [details for action, details in actions(api()) if action == "webhook.create"]
    assert created["headers"] == ["Authorization", "X-Env"]


def test_without_any_there_are_none(api: ApiOf) -> None:
    assert make_webhook(api())["headers"] == {}
    for none in (None, dict[str, str]()):
        assert make_webhook(api(), headers=none)["headers"] == {}
    assert all("headers" not in details for _, details in actions(api()))


@pytest.mark.parametrize(
    "headers",
    [
        {"!#$%&'*+.^_`|~09Az-": "~"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Cookie": "a=b; c=d", "X-Api-Key": '{"a": "(b)"}'},
        {f"X-{number}": "v" for number in range(20)},
        {"X": "v" * 4095},
    ],
)
def test_tokens_with_visible_ascii_are_taken(api: ApiOf, headers: dict[str, str]) -> None:
    assert make_webhook(api(), headers=headers)["headers"].keys() == headers.keys()


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "content-length", "Transfer-Encoding", "connection", "Content-Type", "TE"),
        *("Trailer", "Upgrade", "Expect", "User-Agent", "Keep-Alive", "Accept-Encoding"),
        *("Content-Encoding", "HTTP2-Settings", "Proxy-Authorization", "Proxy-Connection"),
        *("Webhook-Id", "webhook-signature", "WEBHOOK-NEW", "X-Service-Attempt", "x-service-a"),
        *("", "a b", "a:b", "a\r\n", "ü", "a\x00", "(a)", "a/b"),
    ],
)
def test_reserved_and_impossible_names_are_refused(api: ApiOf, name: str) -> None:
    pointer = "/headers/" + name.replace("/", "~1")
    sent = {"url": URL, "headers": {"X-Fine": "a", name: "s3cr3t"}}
    assert errors(api().post("/v1/webhooks", sent)) == [pointer]


@pytest.mark.parametrize(
    "value",
    ["", " ", " s3cr3t", "s3cr3t ", "s3cr3t\r\nX: y", "s3cr3t\n", "\x00s3cr3t", "s3cr3té", "a\tb"],
)
def test_impossible_values_are_refused_and_not_repeated(api: ApiOf, value: str) -> None:
    sent = {"url": URL, "headers": {"X-A": value}}
    assert errors(api().post("/v1/webhooks", sent)) == ["/headers/X-A"]
    made = make_webhook(api())
    assert errors(api().patch(f"/v1/webhooks/{made['id']}", {"headers": {"X-A": value}})) == [
        "/headers/X-A"
    ]


@pytest.mark.parametrize(
    ("headers", "pointer"),
    [
        ({f"X-{number}": "v" for number in range(21)}, "/headers"),
        ({"X": "v" * 4096}, "/headers"),
        ({"X-A": "v", "x-a": "w"}, "/headers"),
        ({"X-A": 1}, "/headers/X-A"),
        ({"X-A": None}, "/headers/X-A"),
        ({"X-A": ["v"]}, "/headers/X-A"),
        ([["X-A", "v"]], "/headers"),
        ("X-A: v", "/headers"),
        ({"X-A": HIDDEN}, "/headers/X-A"),
    ],
)
def test_too_many_and_other_forms_are_refused(api: ApiOf, headers: Any, pointer: str) -> None:
    assert errors(api().post("/v1/webhooks", {"url": URL, "headers": headers})) == [pointer]


def test_a_change_replaces_all_and_keeps_what_is_sent_masked(
    api: ApiOf, admin_engine: Engine
) -> None:
    made = make_webhook(api(), headers={"Authorization": BEARER, "X-Old": "old"})
    path = f"/v1/webhooks/{made['id']}"

    def change(headers: Any) -> Any:
        return api().patch(path, {"headers": headers}).json["headers"]

    assert change({"authorization": HIDDEN, "X-New": "new"}) == {
        "authorization": HIDDEN,
        "X-New": HIDDEN,
    }
    assert errors(api().patch(path, {"headers": {"X-Old": HIDDEN}})) == ["/headers/X-Old"]
    assert change({}) == {}
    assert change({"X-A": "b"}) == {"X-A": HIDDEN}
    assert change(None) == {}
    # What changes nothing says nothing.
    assert change({}) == {}
    told = [details for action, details in actions(api()) if action == "webhook.update"]
    assert [(each["changed"], each["headers"]) for each in told[::-1]] == [
        (["headers"], ["X-New", "authorization"]),
        (["headers"], []),
        (["headers"], ["X-A"]),
        (["headers"], []),
    ]
    with admin_engine.connect() as connection:
        kept = connection.scalars(text("SELECT sealed_target FROM webhooks")).all()
    assert all(b"X-A" not in bytes(each) for each in kept)


def test_a_value_goes_to_no_other_host_unless_it_is_sent_again(api: ApiOf) -> None:
    made = make_webhook(api(), url="https://a.example.com/x", headers={"Authorization": BEARER})
    path = f"/v1/webhooks/{made['id']}"
    elsewhere = {"url": "https://b.example.com/x"}

    assert errors(api().patch(path, elsewhere)) == ["/headers"]
    for headers in ({"Authorization": HIDDEN}, {"X": "y", "Authorization": HIDDEN}):
        assert errors(api().patch(path, {**elsewhere, "headers": headers})) == ["/headers"]
    assert api().get(path).json["url"] == made["url"]
    moved = api().patch(path, {"url": "https://a.example.com/y"}).json
    assert moved["headers"] == {"Authorization": HIDDEN}
    moved = api().patch(path, {**elsewhere, "headers": {"Authorization": BEARER}}).json
    assert moved["headers"] == {"Authorization": HIDDEN}
    assert api().patch(path, {"url": "https://c.example.com", "headers": {}}).status_code == 200


def test_another_header_begins_with_a_clean_record_as_another_url_does(
    api: ApiOf, admin_engine: Engine
) -> None:
    made = make_webhook(api())
    path = f"/v1/webhooks/{made['id']}"
    paused = (
        "UPDATE lanes SET paused_until = clock_timestamp() + interval '1 hour', pause_level = 3"
    )
    with admin_engine.begin() as connection:
        connection.execute(text(paused))
    assert api().get(path).json["health"]["paused_until"] is not None

    changed = api().patch(path, {"headers": {"Authorization": BEARER}}).json

    assert changed["health"]["paused_until"] is None
