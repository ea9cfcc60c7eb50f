"""Requests for a bulk replay: audit, idempotency, validation, roles."""

from typing import Any

import pytest

from tests.api.deliveries.replays.bulk import disable, fail, preview, start
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import NOBODY, make_session, pin_of, pointers, refused
from tests.support.callers.sending import Worker


def test_a_bulk_replay_is_audited_and_a_preview_is_not(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    preview(api(), webhook)
    job = start(api(), webhook, status="failed", rate=7, until="2100-01-01T00:00:00Z")

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


def test_repeats_of_one_request_make_one_job(api: ApiOf, webhook: dict[str, Any]) -> None:
    path, again = f"/v1/webhooks/{webhook['id']}/replay", {"Idempotency-Key": "k"}
    first = api().post(path, {}, headers=again)
    second = api().post(path, {}, headers=again)

    assert first.json == second.json
    assert second.headers["Idempotent-Replayed"] == "true"
    assert len(api().get("/v1/jobs").json["data"]) == 1


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


def test_a_bulk_replay_needs_the_write_role_no_pin_and_a_webhook_of_one_s_own(
    api: ApiOf, webhook: dict[str, Any], mint: Mint, other_tenant: FreshTenant
) -> None:
    path = f"/v1/webhooks/{webhook['id']}/replay"
    pinned = api(mint("write", pin_of(make_session(api()))))

    refused(api(mint("read")).post(path, {}), 403, "insufficient-role")
    refused(pinned.post(path, {}), 403, "pinned-key")
    for body in ({}, {"dry_run": True}):
        refused(api(other_tenant.root_key).post(path, body), 404, "not-found")
        refused(api().post(f"/v1/webhooks/whk_{NOBODY}/replay", body), 404, "not-found")
    assert api(mint("write")).post(path).status_code == 202
