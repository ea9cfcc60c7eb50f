"""Bulk replays of one webhook: start, preview, progress."""

from typing import Any

from tests.support.callers.api import Api
from tests.support.callers.sending import Worker, history, make_findings


def start(api: Api, webhook: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = api.post(f"/v1/webhooks/{webhook['id']}/replay", body)
    assert answer.status_code == 202, answer.json
    job: dict[str, Any] = answer.json
    return job


def preview(api: Api, webhook: dict[str, Any], **body: Any) -> int:
    answer = api.post(f"/v1/webhooks/{webhook['id']}/replay", body | {"dry_run": True})
    assert answer.status_code == 200, answer.json
    assert answer.json.keys() == {"count", "oldest", "newest", "left_out", "seconds", "as_of"}
    return int(answer.json["count"])


def read(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/jobs/{job['id']}").json
    return found


def progress(api: Api, job: dict[str, Any]) -> tuple[int, int, int]:
    """Return (selected, sent, skipped)."""
    found = read(api, job)["progress"]
    ended = ("succeeded", "failed_same", "failed_otherwise", "cancelled", "waiting")
    assert found["sent"] == sum(found[name] for name in ended)
    return found["selected"], found["sent"], found["skipped"]


def replays(api: Api, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    rows = history(api, webhook, "limit=200")
    return [row for row in rows if row["kind"] == "replay"]


def fail(api: Api, worker: Worker, webhook: dict[str, Any], count: int) -> None:
    """Make events whose deliveries fail for good."""
    make_findings(api, count)
    worker.send(webhook, 400)


def disable(api: Api, webhook: dict[str, Any]) -> None:
    api.patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})


def enable(api: Api, webhook: dict[str, Any]) -> None:
    api.patch(f"/v1/webhooks/{webhook['id']}", {"status": "enabled"})
