"""Rows whose numbering process died at once after it: the sweep finds them all the same."""

import pytest

from app import ids
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.workers.outbox import Outbox


@pytest.fixture
def outbox(database: Database, settings: Settings, tenant: FreshTenant) -> Outbox:
    return Outbox(database, settings, tenant.id)


def test_rows_that_a_worker_numbered_before_it_was_killed(outbox: Outbox) -> None:
    webhook = outbox.webhook()
    outbox.emit()
    assert outbox.number(webhook) == 1
    assert webhook in outbox.swept()


def test_rows_that_a_reader_of_the_feed_numbered(outbox: Outbox, api: ApiOf) -> None:
    webhook = outbox.webhook()
    outbox.emit()
    path = f"/v1/webhooks/{ids.text('whk', webhook)}/deliveries"
    assert [each["sequence"] for each in api().get(f"{path}?after=0").json["data"]] == [1]
    assert webhook in outbox.swept()
