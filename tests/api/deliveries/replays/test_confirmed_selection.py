"""A replay sends what its dry run showed: ids, groups, types and times."""

from typing import Any

import pytest

from tests.api.deliveries.replays.bulk import ALL, dry, fail, made, of, read, start
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import NOBODY, make_session, pointers, refused
from tests.support.callers.sending import Worker, books, history, make_findings, make_webhook


def group_of(api: Api, **wanted: Any) -> dict[str, Any]:
    (found,) = [
        each
        for each in api.get("/v1/deliveries/groups").json["data"]
        if wanted.items() <= each.items()
    ]
    group: dict[str, Any] = found
    return group


def test_a_group_is_replayed_as_it_was_confirmed_while_more_fails(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 4, 400)
    fail(api(), worker, webhook, 3, 404)
    group = group_of(api(), status_code=400)
    shown = dry(api(), of(webhook), group=group["group"], rate=2)
    assert (shown["count"], shown["seconds"], group["count"]) == (4, 2, 4)
    confirmed = {
        row["id"] for row in history(api(), webhook) if row["last_attempt"]["status"] == 400
    }

    fail(api(), worker, webhook, 5, 400)
    job = start(api(), of(webhook), group=group["group"], as_of=shown["as_of"])
    worker.finish(job)

    assert job["progress"]["selected"] == 4
    assert {row["replay_of"] for row in made(api(), job)} == confirmed
    assert dry(api(), of(webhook), group=group["group"])["count"] == 5


def test_a_dry_run_says_what_is_left_out_and_why(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    other = make_webhook(api())
    fail(api(), worker, webhook, 5)
    worker.send(other, 400)
    rows = history(api(), webhook)
    path = f"/v1/webhooks/{webhook['id']}/deliveries"
    api().post(f"{path}/{rows[0]['id']}/replay")
    worker.send(webhook, 200)
    api().post(f"{path}/{rows[1]['id']}/replay")
    api().patch(f"/v1/webhooks/{other['id']}", {"status": "disabled"})

    shown = dry(api(), ALL)

    assert shown["count"] == 3
    assert shown["left_out"] == {"arrived_since": 1, "already_waiting": 1, "not_sending": 5}
    assert (shown["oldest"], shown["newest"]) == (rows[4]["created_at"], rows[2]["created_at"])
    assert dry(api(), of(webhook))["left_out"]["not_sending"] == 0


def test_ids_are_replayed_and_no_others(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    other = make_webhook(api())
    fail(api(), worker, webhook, 3)
    worker.send(other, 200)
    make_findings(api(), 1)
    waiting, *failed = history(api(), webhook)
    arrived = history(api(), other)[1]
    named = [failed[0]["id"], failed[2]["id"], failed[0]["id"], arrived["id"], waiting["id"]]

    shown = dry(api(), ALL, ids=named)
    job = start(api(), ALL, ids=named, as_of=shown["as_of"])
    worker.finish(job)

    assert shown["count"] == 2
    assert shown["left_out"] == {"arrived_since": 1, "already_waiting": 1, "not_sending": 0}
    assert {row["replay_of"] for row in made(api(), job)} == {failed[0]["id"], failed[2]["id"]}
    assert read(api(), job)["progress"]["selected"] == 2


def test_an_event_that_two_ids_name_is_sent_once(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 1)
    (row,) = history(api(), webhook)
    again = api().post(f"/v1/webhooks/{webhook['id']}/deliveries/{row['id']}/replay").json
    worker.send(webhook, 400)
    both = [row["id"], again["id"]]

    assert dry(api(), of(webhook), ids=both)["count"] == 1
    job = start(api(), of(webhook), ids=both)
    worker.finish(job)

    assert [each["replay_of"] for each in made(api(), job)] == [again["id"]]


def test_event_types_and_the_time_of_the_failure_narrow_it(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 1)
    session = make_session(api())
    api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})
    worker.send(webhook, 400)
    second, first = history(api(), webhook)

    assert dry(api(), ALL, event_type="session.completed")["count"] == 1
    assert dry(api(), ALL, event_type=["session.completed", "finding.created"])["count"] == 2
    assert dry(api(), ALL, failed_since=second["finished_at"])["count"] == 1
    assert dry(api(), ALL, failed_until=second["finished_at"])["count"] == 1
    assert dry(api(), ALL, failed_since=first["finished_at"])["count"] == 2
    job = start(api(), ALL, event_type="session.completed")
    worker.finish(job)
    assert [row["replay_of"] for row in made(api(), job)] == [second["id"]]


def test_a_replay_of_all_webhooks_sends_to_each_its_own(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    other = make_webhook(api())
    fail(api(), worker, webhook, 3)
    worker.send(other, 404)

    job = start(api(), ALL)
    worker.finish(job)
    assert len(made(api(), job)) == 6
    worker.send(webhook, 200)
    worker.send(other, 400)
    worker.count_again(job)

    found = read(api(), job)
    assert found["status"] == "succeeded"
    assert {name: found["progress"][name] for name in ("selected", "sent", "succeeded")} == {
        "selected": 6,
        "sent": 6,
        "succeeded": 3,
    }
    assert found["progress"]["failed_otherwise"] == 3
    assert all(books(api(), each)["balanced"] for each in (webhook, other))
    (entry,) = api().get("/v1/audit?action=deliveries.replay").json["data"]
    assert (entry["target"]["type"], entry["details"]["count"]) == ("tenant", 6)


DELIVERY, GROUP = f"dlv_{NOBODY}", f"grp_{NOBODY}{'0' * 16}"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"ids": []}, "/ids"),
        ({"ids": ["dlv_1"] * 1001}, "/ids"),
        ({"ids": [1]}, "/ids/0"),
        ({"ids": [DELIVERY], "group": GROUP}, "/group"),
        ({"ids": [DELIVERY], "status": "failed"}, "/status"),
        ({"group": GROUP, "since": "2026-01-01T00:00:00Z"}, "/since"),
        ({"group": 1}, "/group"),
        ({"group": "made up"}, "/group"),
        ({"ids": [DELIVERY, "dlv_1"]}, "/ids/1"),
        ({"event_type": "finding.deleted"}, "/event_type"),
        (
            {"failed_since": "2026-01-02T00:00:00Z", "failed_until": "2026-01-01T00:00:00Z"},
            "/failed_until",
        ),
        ({"status": "skipped", "failed_since": "2026-01-01T00:00:00Z"}, "/failed_since"),
        ({"canary": 0}, "/canary"),
        ({"canary": 101}, "/canary"),
        ({"stop_after_failures": 0}, "/stop_after_failures"),
        ({"as_of": "9999-01-01T00:00:00Z"}, "/as_of"),
        ({"as_of": None}, "/as_of"),
        ({"status": "succeeded"}, "/status"),
        ({"status": []}, "/status"),
        ({"status": None}, "/status"),
        ({"status": ["failed", "lost"]}, "/status"),
        ({"status": ["failed"] * 4}, "/status"),
        ({"status": {"failed": True}}, "/status"),
        ({"rate": 0}, "/rate"),
        ({"rate": 10001}, "/rate"),
        ({"rate": 1.5}, "/rate"),
        ({"rate": None}, "/rate"),
        ({"since": None}, "/since"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "/until"),
        ({"dry_run": "true"}, "/dry_run"),
        ({"event_id": "evt_1"}, "/event_id"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_wrong_field_is_refused_and_named(
    api: ApiOf, webhook: dict[str, Any], body: dict[str, Any], pointer: str, dry_run: bool
) -> None:
    assert pointers(api().post(ALL, {"dry_run": dry_run} | body)) == [pointer]
    assert api().get("/v1/jobs").json["data"] == []


def test_ids_and_groups_of_others_are_as_if_they_did_not_exist(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, other_tenant: FreshTenant
) -> None:
    fail(api(), worker, webhook, 1)
    (row,) = history(api(), webhook)
    stranger = api(other_tenant.root_key)
    for caller, path, named in (
        (stranger, ALL, row["id"]),
        (api(), ALL, f"dlv_{NOBODY}"),
        (api(), of(make_webhook(api())), row["id"]),
    ):
        for dry_run in (True, False):
            answer = caller.post(path, {"ids": [named], "dry_run": dry_run})
            refused(answer, 404, "not-found")
    group = group_of(api())["group"]
    assert dry(stranger, ALL, group=group)["count"] == 0
    assert pointers(api().post(of(make_webhook(api())), {"group": group})) == ["/group"]
