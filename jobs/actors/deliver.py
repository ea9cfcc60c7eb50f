"""The delivery actor: one turn at one lane."""

from uuid import UUID

from jobs.delivery.lane_run import LaneRun
from jobs.process.runtime import runtime


def deliver(tenant_id: str, webhook_id: str, passed_on: str = "0") -> None:
    """Send the due rows of a webhook's lane; `passed_on` counts workers that had no permit."""
    LaneRun(runtime(), UUID(tenant_id), UUID(webhook_id), passed_on=int(passed_on)).run()
