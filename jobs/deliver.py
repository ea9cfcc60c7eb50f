"""The actor that delivers: one turn at one lane."""

from uuid import UUID

from jobs.lane_run import LaneRun
from jobs.runtime import runtime


def deliver(tenant_id: str, webhook_id: str) -> None:
    """Send what is due on one webhook's lane."""
    LaneRun(runtime(), UUID(tenant_id), UUID(webhook_id)).run()
