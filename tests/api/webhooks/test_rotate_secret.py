"""Rotating a webhook's secret: each secret signs as long as its rotation said, no longer."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from app import clock, ids
from app.core.webhooks import webhook_secrets
from app.core.webhooks.webhook_secrets import Secret
from app.database import Database
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.lib.crypto.webhook_signing import Signer
from app.settings import Settings
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import pointers, refused, uuid_of
from tests.support.callers.sending import make_webhook

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
        return webhook_secrets.open_secrets(
            settings.master_keys, bytes(sealed), tenant.id, webhook_id, now + later
        )

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


def test_during_the_overlap_a_receiver_that_knows_either_secret_can_verify(
    api: ApiOf, in_force: InForce
) -> None:
    webhook = make_webhook(api())
    fresh = rotate(api(), webhook, overlap_seconds=60)
    body = b'{"id":"evt_1"}'

    headers = Signer(in_force(webhook)).headers("evt_1", int(clock.now().timestamp()), body)

    for secret in (fresh, webhook["secret"]):
        Verifier(secret).verify(body, headers)
    stranger = Verifier(rotate(api(), make_webhook(api())))
    with pytest.raises(WebhookVerificationError):
        stranger.verify(body, headers)


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


@pytest.mark.parametrize("overlap", [-1, 604801, "60", 1.5, True, None, 10**30])
def test_an_overlap_is_an_integer_of_at_most_a_week(api: ApiOf, overlap: Any) -> None:
    webhook = make_webhook(api())
    answer = api().post(f"/v1/webhooks/{webhook['id']}/rotate-secret", {"overlap_seconds": overlap})
    if overlap == 10**30:
        assert answer.status_code == 422
    else:
        assert pointers(answer) == ["/overlap_seconds"]


def test_sealed_secrets_open_for_their_own_webhook_alone(tenant: FreshTenant) -> None:
    keys, webhook_id = MasterKeys.parse(MasterKeys.generate()), ids.new()
    sealed = webhook_secrets.seal(keys, tenant.id, webhook_id, [Secret("whsec_AAAA")])

    assert webhook_secrets.open_secrets(keys, sealed, tenant.id, webhook_id, clock.now()) == [
        "whsec_AAAA"
    ]
    for tenant_id, other in ((tenant.id, ids.new()), (ids.new(), webhook_id)):
        with pytest.raises(CannotOpen):
            webhook_secrets.open_secrets(keys, sealed, tenant_id, other, clock.now())
