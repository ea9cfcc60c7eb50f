"""A webhook's own headers, and the rotation of its secret."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app import clock, ids
from app.core.webhooks import webhook_secrets
from app.core.webhooks.webhook_secrets import Secret
from app.database import Database
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.settings import Settings
from tests.api.webhooks.audited import actions
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import refused, uuid_of
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
    assert [each["changed"] for each in told[::-1]] == [
        {"headers": {"old": old, "new": new}}
        for old, new in (
            (["Authorization", "X-Old"], ["X-New", "authorization"]),
            (["X-New", "authorization"], []),
            ([], ["X-A"]),
            (["X-A"], []),
        )
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


InForce = Callable[..., list[str]]


def rotate(api: Api, webhook: dict[str, Any], **body: Any) -> str:
    answer = api.post(f"/v1/webhooks/{webhook['id']}/rotate-secret", body)
    assert answer.status_code == 200, answer.json
    assert answer.json["id"] == webhook["id"]
    return str(answer.json["secret"])


@pytest.fixture
def in_force(database: Database, tenant: FreshTenant, settings: Settings) -> InForce:
    """Return a reader of the secrets that sign, as the worker reads them, some time from now."""

    def read(webhook: dict[str, Any], later: timedelta = timedelta(0)) -> list[str]:
        webhook_id = uuid_of(webhook["id"])
        with database.transaction(tenant.id) as session:
            sealed, now = session.execute(
                text("SELECT sealed_secrets, clock_timestamp() FROM webhooks WHERE id = :id"),
                {"id": webhook_id},
            ).one()
        found = webhook_secrets.open_secrets(
            settings.master_keys, bytes(sealed), tenant.id, webhook_id, now + later
        )
        return [each.text for each in found]

    return read


def test_both_secrets_sign_for_a_day_and_then_the_new_one_alone(
    api: ApiOf, in_force: InForce
) -> None:
    webhook = make_webhook(api())

    # A rotation needs no body.
    fresh = api().post(f"/v1/webhooks/{webhook['id']}/rotate-secret").json["secret"]

    assert fresh != webhook["secret"]
    assert in_force(webhook) == [fresh, webhook["secret"]]
    assert in_force(webhook, timedelta(hours=23, minutes=59)) == [fresh, webhook["secret"]]
    assert in_force(webhook, timedelta(hours=24)) == [fresh]


def test_rotating_again_lets_each_older_secret_keep_its_own_end(
    api: ApiOf, in_force: InForce
) -> None:
    webhook = make_webhook(api())
    first = webhook["secret"]
    second = rotate(api(), webhook, overlap_seconds=600)
    third = rotate(api(), webhook, overlap_seconds=60)
    fourth = rotate(api(), webhook, overlap_seconds=7200)

    assert in_force(webhook) == [fourth, third, second, first]
    assert in_force(webhook, timedelta(seconds=60)) == [fourth, third, first]
    assert in_force(webhook, timedelta(seconds=600)) == [fourth, third]
    assert in_force(webhook, timedelta(seconds=7201)) == [fourth]
    fifth = rotate(api(), webhook, overlap_seconds=0)
    assert in_force(webhook) == [fifth], "all older ones end at once"


def test_a_secret_that_has_ended_does_not_come_back(api: ApiOf, in_force: InForce) -> None:
    webhook = make_webhook(api())
    second = rotate(api(), webhook, overlap_seconds=1)
    while webhook["secret"] in in_force(webhook):
        pass

    third = rotate(api(), webhook, overlap_seconds=604800)

    assert in_force(webhook) == [third, second]


def test_too_many_secrets_in_force_are_refused_with_the_way_out(
    api: ApiOf, in_force: InForce
) -> None:
    webhook = make_webhook(api())
    for _ in range(19):
        rotate(api(), webhook)

    path = f"/v1/webhooks/{webhook['id']}/rotate-secret"
    problem = refused(api().post(path, {}), 409, "conflict")

    assert "overlap_seconds 0" in problem["detail"]
    assert len(in_force(webhook)) == 20
    last = rotate(api(), webhook, overlap_seconds=0)
    assert in_force(webhook) == [last]


def test_sealed_secrets_open_for_their_own_webhook_alone(tenant: FreshTenant) -> None:
    keys, webhook_id = MasterKeys.parse(MasterKeys.generate()), ids.new()
    sealed = webhook_secrets.seal_secrets(keys, tenant.id, webhook_id, [Secret("whsec_AAAA")])

    assert webhook_secrets.open_secrets(keys, sealed, tenant.id, webhook_id, clock.now()) == [
        Secret("whsec_AAAA")
    ]
    for tenant_id, other in ((tenant.id, ids.new()), (ids.new(), webhook_id)):
        with pytest.raises(CannotOpen):
            webhook_secrets.open_secrets(keys, sealed, tenant_id, other, clock.now())
