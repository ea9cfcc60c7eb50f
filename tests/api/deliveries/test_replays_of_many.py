"""Many failures and their replays at once: read by ranges they are what they are one by one."""

from typing import Any

import pytest

from app import ids
from app.core.callers import Caller, Role
from app.core.delivery.history import failure_groups
from app.core.delivery.history.delivery_filters import Group, TenantFilters
from app.core.replay import bulk_replay, replay_selection
from app.core.replay.replay_preview import Preview
from app.core.replay.replay_selection import Selection, Status, Wanted
from app.database import Database, cursor
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import uuid_of
from tests.support.callers.sending import Worker, make_findings, make_webhook

EVENTS = 24

# Up to three replays of each event, of every end, at moments around that of a selection.
REPLAYS = """
INSERT INTO deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority, sequence,
                        replay_of, status, attempts, next_attempt_at, finished_at, outcome,
                        status_code, failure, created_at)
SELECT tenant_id, id_beside(event_id), webhook_id, event_id, event_type, 'replay', 2, sequence, id,
       became, 1, CASE WHEN became = 'retrying' THEN clock_timestamp() END,
       CASE WHEN became <> 'retrying' THEN ended_at END, outcome, status_code, failure,
       ended_at - interval '30 seconds'
  FROM (SELECT d.*, (ARRAY['failed', 'succeeded', 'cancelled', 'retrying'])
                        [1 + (sequence * 7 + n * n) % 4] AS became,
               clock_timestamp() + (n - 2) * interval '1 minute' AS ended_at
          FROM deliveries AS d CROSS JOIN generate_series(1, 3) AS n
         WHERE d.kind = 'event' AND n <= d.sequence % 4) AS source
"""
COUNTED = """
UPDATE lanes SET replays_accepted = CASE WHEN webhook_id = :probed THEN 1000000 ELSE 1 END
"""
BY_ONE = """
SELECT count(*) FROM ({source}) AS source WHERE NOT {settled}
"""


@pytest.fixture
def webhooks(api: ApiOf, worker: Worker) -> list[dict[str, Any]]:
    """Two webhooks to which everything fails; the second has had far more replays."""
    made = [make_webhook(api()) for _ in range(2)]
    make_findings(api(), EVENTS)
    for webhook in made:
        worker.send(webhook, 500, limit=EVENTS // 2, error="a")
        worker.unpause()
        worker.send(webhook, 404, error="b")
    return made


@pytest.fixture
def replayed(webhooks: list[dict[str, Any]], worker: Worker) -> list[dict[str, Any]]:
    worker.run(REPLAYS)
    worker.run(COUNTED, probed=uuid_of(webhooks[1]["id"]))
    return webhooks


def _preview(
    database: Database, tenant: FreshTenant, wanted: Wanted, most: int | None = None
) -> Preview:
    caller = Caller(tenant.id, ids.new(), Role.WRITE, None, "test")
    with database.transaction(tenant.id) as session:
        return bulk_replay.preview(session, caller, None, wanted, all_webhooks=True, most=most)


def test_a_group_counts_what_its_name_lists(
    api: ApiOf, replayed: list[dict[str, Any]], worker: Worker
) -> None:
    found = api().get("/v1/deliveries/groups").json["data"]

    assert {each["webhook_id"] for each in found} == {each["id"] for each in replayed}
    for each in found:
        listed = api().get(f"/v1/deliveries?limit=200&group={each['group']}").json["data"]
        assert each["count"] == len(listed)
        assert each["example_id"] == listed[0]["id"]


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("named", [(Status.FAILED,), (Status.FAILED, Status.CANCELLED)])
def test_a_preview_counts_what_a_replay_would_pick_one_by_one(
    database: Database, tenant: FreshTenant, named: tuple[Status, ...]
) -> None:
    wanted = Wanted(statuses=frozenset(named))
    shown = _preview(database, tenant, wanted)

    assert 0 < shown.count < 2 * EVENTS
    assert shown.count == _picked(database, tenant, shown.selection)
    assert shown.complete


@pytest.mark.usefixtures("replayed")
def test_a_preview_of_a_group_counts_what_a_replay_would_pick_one_by_one(
    database: Database, tenant: FreshTenant
) -> None:
    with database.transaction(tenant.id) as session:
        groups = failure_groups.find(session, tenant.id, TenantFilters()).groups
    assert len(groups) == 4
    for found, _ in groups:
        wanted = Wanted(group=Group(found.webhook_id, found.failure))
        shown = _preview(database, tenant, wanted)
        assert shown.count == _picked(database, tenant, shown.selection)
        # As many candidates as that are all there are.
        assert _preview(database, tenant, wanted, 4 * EVENTS).count == shown.count


def _picked(database: Database, tenant: FreshTenant, selection: Selection) -> int:
    query = BY_ONE.format(
        source=replay_selection.source(selection, "deliveries"),
        settled=replay_selection.SETTLED_THEN,
    )
    with database.transaction(tenant.id) as session:
        values = replay_selection.values(tenant.id, selection)
        row = cursor(session).execute(query, values).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.usefixtures("webhooks")
@pytest.mark.parametrize(("most", "count", "complete"), [(5, 5, False), (48, 48, True)])
def test_a_bounded_preview_counts_the_newest_and_says_whether_there_are_more(
    database: Database, tenant: FreshTenant, most: int, count: int, *, complete: bool
) -> None:
    shown = _preview(database, tenant, Wanted(), most)
    assert (shown.count, shown.complete) == (count, complete)
    assert _preview(database, tenant, Wanted()).count == 2 * EVENTS


def test_a_bounded_preview_of_a_group_leaves_out_other_failures(
    database: Database, tenant: FreshTenant, webhooks: list[dict[str, Any]]
) -> None:
    with database.transaction(tenant.id) as session:
        groups = failure_groups.find(
            session, tenant.id, TenantFilters(webhook_id=uuid_of(webhooks[0]["id"]))
        )
    for found, _ in groups.groups:
        wanted = Wanted(group=Group(found.webhook_id, found.failure))
        shown = _preview(database, tenant, wanted, EVENTS - 1)
        assert not shown.complete
        assert 0 < shown.count <= found.count == EVENTS // 2


def test_a_preview_counts_everything_where_the_newest_are_settled(
    api: ApiOf,
    database: Database,
    tenant: FreshTenant,
    webhooks: list[dict[str, Any]],
    worker: Worker,
) -> None:
    other = uuid_of(webhooks[1]["id"])
    worker.run("UPDATE deliveries SET kind = 'test' WHERE webhook_id = :other", other=other)
    path = f"/v1/webhooks/{webhooks[0]['id']}/deliveries"
    for row in api().get(f"{path}?limit=3").json["data"]:
        api().post(f"{path}/{row['id']}/replay")

    shown = _preview(database, tenant, Wanted(), 3)

    assert (shown.count, shown.complete) == (EVENTS - 3, True)
