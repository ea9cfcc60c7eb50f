"""Requests for a bulk replay: audit, validation, dry runs."""

from typing import Any

import pytest

from tests.api.deliveries.replays.bulk import disable, fail, of, preview, start
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import NOBODY, pointers, refused
from tests.support.callers.sending import Worker


def test_a_bulk_replay_is_audited_and_a_preview_is_not(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    preview(api(), webhook)
    job = start(api(), of(webhook), status="failed", rate=7, until="2100-01-01T00:00:00Z")

    (entry,) = api().get("/v1/audit?action=deliveries.replay").json["data"]
    assert entry["target"] == {"type": "webhook", "id": webhook["id"]}
    assert entry["details"] == {
        "job_id": job["id"],
        "count": 2,
        "status": ["failed"],
        "since": None,
        "until": "2100-01-01T00:00:00.000000Z",
        "rate": 7,
    }


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"status": "succeeded"}, "/status"),
        ({"status": []}, "/status"),
        ({"status": None}, "/status"),
        ({"status": ["failed", "lost"]}, "/status"),
        ({"status": ["failed"] * 4}, "/status"),
        ({"status": {"failed": True}}, "/status"),
        ({"rate": 0}, "/rate"),
        ({"rate": 10001}, "/rate"),
        ({"rate": 1.5}, "/rate"),
        ({"rate": "5"}, "/rate"),
        ({"rate": None}, "/rate"),
        ({"since": "yesterday"}, "/since"),
        ({"since": None}, "/since"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "/until"),
        ({"dry_run": "true"}, "/dry_run"),
        ({"dry_run": 1}, "/dry_run"),
        ({"event_id": "evt_1"}, "/event_id"),
    ],
)
def test_a_wrong_field_is_refused_and_named(
    api: ApiOf, webhook: dict[str, Any], body: dict[str, Any], pointer: str
) -> None:
    answer = api().post(f"/v1/webhooks/{webhook['id']}/replay", body)

    assert pointers(answer) == [pointer]
    assert api().get("/v1/jobs").json["data"] == []


def test_a_disabled_webhook_can_be_previewed_and_not_replayed_to(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    disable(api(), webhook)

    path = f"/v1/webhooks/{webhook['id']}/replay"
    shown = api().post(path, {"dry_run": True}).json
    assert (shown["count"], shown["left_out"]["not_sending"]) == (0, 2)
    answer = api().post(path, {})
    refused(answer, 409, "webhook-disabled")


def test_a_dry_run_refuses_the_idempotency_key_that_the_replay_itself_would(api: ApiOf) -> None:
    for dry_run in (True, False):
        answer = api().post(
            "/v1/deliveries/replay", {"dry_run": dry_run}, headers={"Idempotency-Key": "k" * 256}
        )
        refused(answer, 422, "validation-failed")
        assert answer.json["errors"][0]["pointer"] == "/Idempotency-Key"


def test_a_dry_run_finds_no_webhook_of_another_tenant(
    api: ApiOf, webhook: dict[str, Any], other_tenant: FreshTenant
) -> None:
    for caller, named in ((api(other_tenant.root_key), webhook["id"]), (api(), f"whk_{NOBODY}")):
        answer = caller.post(f"/v1/webhooks/{named}/replay", {"dry_run": True})
        refused(answer, 404, "not-found")
