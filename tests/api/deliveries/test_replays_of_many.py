"""Many failures and their replays at once: read by ranges they are what they are one by one."""

from typing import Any

import pytest

from app import ids
from app.core.callers import Caller, Role
from app.core.delivery.history import failure_groups
from app.core.delivery.history.delivery_list import Filters, Group
from app.core.replay import bulk_replay, replay_deliveries
from app.core.replay.replay_deliveries import Scan
from app.core.replay.replay_selection import Preview, Status, Wanted
from app.database import Database, cursor
from app.models import Job
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import uuid_of
from tests.support.callers.sending import Worker, make_findings, make_webhook

EVENTS = 24

# Up to three replays of each event, of every end, at moments around that of a selection.
REPLAYS = """
WITH source AS MATERIALIZED (
    SELECT *, id_beside(event_id) AS fresh_id FROM (
        SELECT d.*, (ARRAY['failed', 'succeeded', 'cancelled', 'retrying'])
                        [1 + (sequence * 7 + n * n) % 4] AS became,
               clock_timestamp() + (n - 2) * interval '1 minute' AS ended_at
          FROM deliveries AS d CROSS JOIN generate_series(1, 3) AS n
         WHERE d.kind = 'event' AND n <= d.sequence % 4) AS each
), open AS (
    INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                                 sequence, replay_of, status, attempts, next_attempt_at, outcome,
                                 status_code, failure, created_at)
    SELECT tenant_id, fresh_id, webhook_id, event_id, event_type, 'replay', 2, sequence, id, became,
           1, clock_timestamp(), outcome, status_code, failure, ended_at - interval '30 seconds'
      FROM source WHERE became = 'retrying'
)
INSERT INTO ended_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                              sequence, replay_of, status, attempts, finished_at, outcome,
                              status_code, failure, created_at)
SELECT tenant_id, fresh_id, webhook_id, event_id, event_type, 'replay', 2, sequence, id, became, 1,
       ended_at, outcome, status_code, failure, ended_at - interval '30 seconds'
  FROM source WHERE became <> 'retrying'
"""
# Each source by itself, as it was at a moment: no replay of its event had arrived or waited, and of
# a group it was the last that failed.
BY_ONE = """
SELECT count(*) FROM deliveries AS d
 WHERE d.finished_at <= %(as_of)s AND {named}
   AND NOT EXISTS (SELECT FROM deliveries AS r
                    WHERE r.kind = 'replay' AND r.webhook_id = d.webhook_id
                      AND r.event_id = d.event_id AND r.id <> d.id
                      AND (r.status = 'succeeded' AND r.finished_at <= %(as_of)s
                           OR r.created_at <= %(as_of)s
                              AND (r.finished_at IS NULL OR r.finished_at > %(as_of)s)))
"""
OF_STATUS = "d.kind = 'event' AND d.status = ANY (%(statuses)s)"
OF_GROUP = """
d.kind <> 'test' AND d.status = 'failed' AND d.webhook_id = %(webhook)s AND d.failure = %(failure)s
   AND NOT EXISTS (SELECT FROM deliveries AS r
                    WHERE r.kind = 'replay' AND r.webhook_id = d.webhook_id
                      AND r.event_id = d.event_id AND r.id <> d.id
                      AND (d.kind <> 'replay' OR r.id > d.id)
                      AND r.status = 'failed' AND r.finished_at <= %(as_of)s)
"""


@pytest.fixture
def webhooks(api: ApiOf, worker: Worker) -> list[dict[str, Any]]:
    """Two webhooks to which everything fails."""
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
    worker.run("UPDATE lanes SET replays_accepted = 1")
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


def _counted_by_one(database: Database, tenant: FreshTenant, named: str, **values: Any) -> int:
    with database.transaction(tenant.id) as session:
        row = cursor(session).execute(BY_ONE.format(named=named), values).fetchone()
    assert row is not None
    return int(row[0])


def _picked(database: Database, tenant: FreshTenant, shown: Preview) -> int:
    """Return how many of a previewed selection a job would begin with."""
    found = 0
    for webhook in shown.webhooks:
        with database.transaction(tenant.id) as session:
            job = Job(tenant_id=tenant.id, id=ids.new(), created_at=shown.selection.as_of)
            scan = Scan(webhook, "deliveries")
            sources = replay_deliveries.pick(session, job, shown.selection, scan, 1000)
            found += sum(source.selected for source in sources)
    return found


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("named", [(Status.FAILED,), (Status.FAILED, Status.CANCELLED)])
def test_preview_and_job_take_what_is_selected_one_by_one(
    database: Database, tenant: FreshTenant, named: tuple[Status, ...]
) -> None:
    shown = _preview(database, tenant, Wanted(statuses=frozenset(named)))

    assert 0 < shown.count < 2 * EVENTS
    asked = {"as_of": shown.selection.as_of, "statuses": list(named)}
    assert shown.count == _counted_by_one(database, tenant, OF_STATUS, **asked)
    assert shown.count == _picked(database, tenant, shown)
    assert shown.complete


@pytest.mark.usefixtures("replayed")
def test_preview_and_job_take_of_a_group_what_is_selected_one_by_one(
    database: Database, tenant: FreshTenant
) -> None:
    with database.transaction(tenant.id) as session:
        groups = failure_groups.find(session, tenant.id, Filters()).groups
    assert len(groups) == 4
    for found in groups:
        wanted = Wanted(group=Group(found.webhook_id, found.failure))
        shown = _preview(database, tenant, wanted)
        asked: dict[str, Any] = {"as_of": shown.selection.as_of, "webhook": found.webhook_id}
        assert shown.count == _counted_by_one(
            database, tenant, OF_GROUP, failure=found.failure, **asked
        )
        assert shown.count == _picked(database, tenant, shown)
        # As many candidates as that are all there are.
        assert _preview(database, tenant, wanted, 4 * EVENTS).count == shown.count


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
            session, tenant.id, Filters(webhook_id=uuid_of(webhooks[0]["id"]))
        )
    for found in groups.groups:
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
    worker.run("UPDATE ended_deliveries SET kind = 'test' WHERE webhook_id = :other", other=other)
    path = f"/v1/webhooks/{webhooks[0]['id']}/deliveries"
    for row in api().get(f"{path}?limit=3").json["data"]:
        api().post(f"{path}/{row['id']}/replay")

    shown = _preview(database, tenant, Wanted(), 3)

    assert (shown.count, shown.complete) == (EVENTS - 3, True)
