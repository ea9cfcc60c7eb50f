"""Replays by a confirmed selection: dry run, start, progress."""

from typing import Any

from tests.support.callers.api import Api
from tests.support.callers.sending import Worker, make_findings

ALL = "/v1/deliveries/replay"


def of(webhook: dict[str, Any]) -> str:
    return f"/v1/webhooks/{webhook['id']}/replay"


def dry(api: Api, path: str, **body: Any) -> dict[str, Any]:
    answer = api.post(path, body | {"dry_run": True})
    assert answer.status_code == 200, answer.json
    found: dict[str, Any] = answer.json
    return found


def start(api: Api, path: str, **body: Any) -> dict[str, Any]:
    answer = api.post(path, body)
    assert answer.status_code == 202, answer.json
    job: dict[str, Any] = answer.json
    return job


def read(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/jobs/{job['id']}").json
    kept = found["progress"]
    ended = ("succeeded", "failed_same", "failed_otherwise", "cancelled", "waiting")
    assert kept["sent"] == sum(kept[name] for name in ended)
    return found


def made(api: Api, job: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get(
        f"/v1/deliveries?limit=200&job_id={job['id']}{query}"
    ).json["data"]
    return rows


def fail(worker: Worker, api: Api, webhook: dict[str, Any], count: int, status: int = 400) -> None:
    make_findings(api, count)
    worker.send(webhook, status)
    worker.run("UPDATE lanes SET paused_until = NULL, pause_level = 0")
