"""Bulk replays of one webhook or of all: dry run, start, progress."""

from typing import Any

from tests.support.callers.api import Api
from tests.support.callers.sending import Worker, history, make_findings

ALL = "/v1/deliveries/replay"


def of(webhook: dict[str, Any]) -> str:
    return f"/v1/webhooks/{webhook['id']}/replay"


def dry(api: Api, path: str, **body: Any) -> dict[str, Any]:
    answer = api.post(path, body | {"dry_run": True})
    assert answer.status_code == 200, answer.json
    assert answer.json.keys() == {"count", "oldest", "newest", "left_out", "seconds", "as_of"}
    found: dict[str, Any] = answer.json
    return found


def preview(api: Api, webhook: dict[str, Any], **body: Any) -> int:
    return int(dry(api, of(webhook), **body)["count"])


def start(api: Api, path: str, **body: Any) -> dict[str, Any]:
    return api.made(path, body, status=202)


def read(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/jobs/{job['id']}").json
    kept = found["progress"]
    ended = ("succeeded", "failed_same", "failed_otherwise", "cancelled", "waiting")
    assert kept["sent"] == sum(kept[name] for name in ended)
    return found


def progress(api: Api, job: dict[str, Any]) -> tuple[int, int, int]:
    """Return (selected, sent, skipped)."""
    found = read(api, job)["progress"]
    return found["selected"], found["sent"], found["skipped"]


def made(api: Api, job: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    """Return the deliveries that a job has made."""
    path = f"/v1/deliveries?limit=200&job_id={job['id']}{query}"
    rows: list[dict[str, Any]] = api.get(path).json["data"]
    return rows


def replays(api: Api, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    rows = history(api, webhook, "limit=200")
    return [row for row in rows if row["kind"] == "replay"]


def fail(api: Api, worker: Worker, webhook: dict[str, Any], count: int, status: int = 400) -> None:
    """Make events whose deliveries fail for good."""
    make_findings(api, count)
    worker.send(webhook, status)


def disable(api: Api, webhook: dict[str, Any]) -> None:
    api.patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})


def enable(api: Api, webhook: dict[str, Any]) -> None:
    api.patch(f"/v1/webhooks/{webhook['id']}", {"status": "enabled"})
