"""Pages of a tenant with more failures than a page counts."""

from typing import Any

import pytest

from app.core.delivery.history.tenant_history import MOST_READ
from tests.support.callers.api import ApiOf
from tests.support.callers.console import Visitor, hidden
from tests.support.callers.sending import Worker, make_findings, make_webhook

FAILED = 5_001
NEW, GROUPS = "/console/replays/new", "/console/deliveries/groups"


@pytest.fixture
def webhook(api: ApiOf, worker: Worker) -> dict[str, Any]:
    """A webhook with more failures than are counted."""
    made = make_webhook(api())
    make_findings(api(), 1)
    worker.send(made, 500, error="a")
    worker.copy("failed", FAILED - 1)
    return made


def test_a_preview_says_that_there_is_more_and_all_of_it_is_replayed(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any]
) -> None:
    page = admin.get(f"{NEW}?webhook_id={webhook['id']}").text

    assert "<strong>3,000+</strong> events are sent again" in page
    assert "Replay 3,000+ events</button>" in page
    fields = hidden(page, NEW)
    led = admin.post(NEW, fields)
    assert led.status_code == 303
    (job,) = api().get("/v1/jobs?kind=bulk_replay").json["data"]
    assert job["progress"]["selected"] == FAILED
    assert job["args"]["as_of"] == fields["as_of"]


def test_groups_say_how_many_failures_they_are_of(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any]
) -> None:
    page = admin.get(GROUPS).text

    assert "the newest 3,000 are read" in page
    assert ">3,000</a>" in page
    (group,) = api().get("/v1/deliveries/groups").json["data"]
    assert (group["webhook_id"], group["count"]) == (webhook["id"], FAILED)


def test_pages_tell_of_older_failures_where_the_newest_were_replayed(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    failed = api().get("/v1/deliveries?limit=1").json["data"][0]
    path = f"/v1/webhooks/{webhook['id']}/deliveries/{failed['id']}/replay"
    assert api().post(path).status_code == 202
    worker.send(webhook, 200)

    groups = admin.get(GROUPS).text
    assert "Nothing fails" not in groups
    assert "older ones are not grouped here" in groups
    overview = admin.get("/console/overview").text
    assert "Nothing needs" not in overview
    assert "older ones may wait" in overview


def test_a_list_that_ends_early_leads_on(admin: Visitor, api: ApiOf, worker: Worker) -> None:
    make_webhook(api())
    make_findings(api(), 1)
    worker.copy("pending", MOST_READ)

    page = admin.get("/console/deliveries?status=sending").text
    assert "No delivery fits" not in page
    assert "there are older ones to look through" in page
    assert 'rel="next"' in page
