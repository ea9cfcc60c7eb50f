"""Requests for a bulk replay: audit, validation, dry runs."""

from typing import Any

from tests.api.deliveries.replays.bulk import disable, fail, of, preview, start
from tests.support.callers.api import ApiOf
from tests.support.callers.making import refused
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
