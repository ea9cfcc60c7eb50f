"""A webhook with several lanes: each session in one, each lane with its numbers, nothing lost."""

from collections import defaultdict
from typing import Any
from uuid import UUID

import pytest

from app import ids
from tests.support.callers.api import Api, ApiOf
from tests.support.callers.making import finding_of, make_session, pointers, uuid_of
from tests.support.callers.sending import TWO_TRIES, Worker, books, history, make_webhook

LANES = 4


def report(api: Api, sessions: int, each: int = 3) -> dict[str, str]:
    """Make findings in sessions of their own; return the session of each by its id."""
    found: dict[str, str] = {}
    for _ in range(sessions):
        session_id = make_session(api)["id"]
        body = {"findings": [finding_of(session_id)] * each}
        answer = api.post("/v1/findings/batch", body)
        assert answer.status_code == 201, answer.json
        found |= {finding["id"]: session_id for finding in answer.json["data"]}
    return found


def feed(api: Api, webhook: dict[str, Any], lane: int) -> list[dict[str, Any]]:
    """Read one lane's feed to its end."""
    entries: list[dict[str, Any]] = []
    path = f"/v1/webhooks/{webhook['id']}/deliveries"
    while True:
        after = entries[-1]["sequence"] if entries else 0
        answer = api.get(f"{path}?after={after}&lane={lane}&limit=5")
        assert answer.status_code == 200, answer.text
        assert answer.json["lane"] == lane
        if not answer.json["data"]:
            return entries
        entries += answer.json["data"]


def lane_of(webhook: dict[str, Any], number: int) -> dict[str, Any]:
    """Name a lane as the worker is rung for it."""
    key = uuid_of(webhook["id"])
    assert isinstance(key, UUID)
    return {"id": f"whk_{ids.lane_of(key, number).hex}"}


def send(worker: Worker, webhook: dict[str, Any], status: int, lanes: int = 16) -> int:
    """Have each of the first lanes that there are send what is due."""
    return sum(worker.send(lane_of(webhook, each), status) for each in range(1, lanes + 1))


def by_lane(api: Api, webhook: dict[str, Any], lanes: int) -> dict[int, list[dict[str, Any]]]:
    return {lane: feed(api, webhook, lane) for lane in range(1, lanes + 1)}


def test_the_events_of_a_session_go_by_one_lane_and_each_lane_numbers_its_own(
    api: ApiOf, worker: Worker
) -> None:
    webhook = make_webhook(api(), lanes=LANES)
    assert webhook["lanes"] == LANES
    sessions = report(api(), 12)

    feeds = by_lane(api(), webhook, LANES)

    lanes: defaultdict[str, set[int]] = defaultdict(set)
    for lane, entries in feeds.items():
        assert [each["sequence"] for each in entries] == list(range(1, len(entries) + 1))
        assert all(each.get("lane", 1) == lane for each in entries)
        assert {each["webhook_id"] for each in entries} <= {webhook["id"]}
        for each in entries:
            lanes[sessions[each["payload"]["data"]["id"]]].add(lane)
    told = [each["payload"]["data"]["id"] for entries in feeds.values() for each in entries]
    assert sorted(told) == sorted(sessions)
    assert all(len(used) == 1 for used in lanes.values())
    assert len(set().union(*lanes.values())) > 1

    assert send(worker, webhook, 200, LANES) == len(sessions)
    done = books(api(), webhook, exact=True)
    assert (done["accepted"], done["succeeded"], done["balanced"]) == (36, 36, True)
    rows = history(api(), webhook, "limit=200&status=succeeded")
    assert [row["id"] for row in rows] == sorted((row["id"] for row in rows), reverse=True)
    assert len(rows) == 36
    hours = api().get(f"/v1/webhooks/{webhook['id']}/stats").json["data"]
    assert sum(hour["succeeded"] for hour in hours) == 36


@pytest.mark.parametrize("change", [(1, 8), (4, 1), (2, 16, 3)])
def test_more_or_fewer_lanes_lose_and_double_nothing(
    api: ApiOf, worker: Worker, change: tuple[int, ...]
) -> None:
    webhook = make_webhook(api(), lanes=change[0])
    path = f"/v1/webhooks/{webhook['id']}"
    events = report(api(), 6)
    for lanes in change[1:]:
        assert send(worker, webhook, 200, 1) >= 0
        assert api().patch(path, {"lanes": lanes}).json["lanes"] == lanes
        events |= report(api(), 6)
    send(worker, webhook, 200, max(change))

    done = books(api(), webhook, exact=True)
    assert (done["accepted"], done["succeeded"], done["balanced"]) == (len(events),) * 2 + (True,)
    told = [
        each["payload"]["data"]["id"]
        for entries in by_lane(api(), webhook, max(change)).values()
        for each in entries
    ]
    assert sorted(told) == sorted(events)


def test_what_is_done_to_a_webhook_is_done_to_all_its_lanes(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api(), lanes=LANES)
    path = f"/v1/webhooks/{webhook['id']}"
    api().patch(path, {"held": True})
    report(api(), 12, each=1)
    assert send(worker, webhook, 200, LANES) == 0
    assert api().get(path).json["health"]["state"] == "held"
    api().patch(path, {"held": False})

    for lane in range(1, LANES + 1):
        worker.send(lane_of(webhook, lane), 500, TWO_TRIES)
    assert {row["status"] for row in history(api(), webhook)} == {"retrying"}
    told = api().post(f"{path}/retry-now", {}).json
    assert told["count"] == 12
    job = api().get(f"/v1/jobs/{told['job_id']}").json
    worker.finish(job)
    assert send(worker, webhook, 500, LANES) == 12
    assert {row["status"] for row in history(api(), webhook)} == {"failed"}

    dry = api().post(f"{path}/replay", {"status": ["failed"], "dry_run": True}).json
    assert dry["count"] == 12
    job = api().post(f"{path}/replay", {"status": ["failed"]}).json
    worker.finish(job)
    worker.unpause()
    assert send(worker, webhook, 200, LANES) == 12
    assert books(api(), webhook, exact=True)["arrived_by_replay"] == 12

    report(api(), 12, each=1)
    assert api().patch(path, {"status": "disabled"}).json["status"] == "disabled"
    closed = books(api(), webhook, exact=True)
    assert (closed["cancelled"], closed["pending"], closed["balanced"]) == (12, 0, True)


def test_a_single_replay_goes_by_the_lane_of_its_delivery(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api(), lanes=LANES)
    report(api(), 12, each=1)
    send(worker, webhook, 500, LANES)
    failed = next(row for row in history(api(), webhook) if row.get("lane", 1) > 1)
    path = f"/v1/webhooks/{webhook['id']}/deliveries/{failed['id']}"

    again = api().post(f"{path}/replay").json

    assert (again["lane"], again["sequence"]) == (failed["lane"], failed["sequence"])
    assert worker.send(lane_of(webhook, failed["lane"]), 200) == 1
    assert api().get(path).json["arrived_by_replay"] == again["id"]
    event = api().get(f"/v1/events/{failed['event_id']}").json
    (decided,) = event["webhooks"]
    assert {each["id"] for each in decided["deliveries"]} == {failed["id"], again["id"]}


@pytest.mark.parametrize("query", ["after=0&lane=2", "lane=1", "after=0&lane=17"])
def test_only_a_lane_that_there_is_has_a_feed(api: ApiOf, query: str) -> None:
    webhook = make_webhook(api())
    answer = api().get(f"/v1/webhooks/{webhook['id']}/deliveries?{query}")
    assert pointers(answer) == ["/lane"]
    plain = api().get(f"/v1/webhooks/{webhook['id']}/deliveries?after=0").json
    assert "lane" not in plain
