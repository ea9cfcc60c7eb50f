"""What tests do to lanes: tell a lane of its receiver, and leave no room in a worker process."""

from uuid import UUID, uuid4

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.process.bulkhead import Bulkhead, Permit


def has_answered(
    session: Session, webhook_id: UUID, *, latency_ms: float = 5.0, concurrency: int = 64
) -> None:
    """Have a lane know its receiver: how soon it answers, and how many POSTs it takes at once."""
    session.execute(
        text("UPDATE lanes SET latency_ms = :latency, concurrency = :most WHERE webhook_id = :id"),
        {"latency": latency_ms, "most": concurrency, "id": webhook_id},
    )


def fill(bulkhead: Bulkhead, *, quick: bool = False) -> list[Permit]:
    """Have turns of other tenants take all permits of a kind."""
    permits = []
    while permit := bulkhead.acquire(uuid4(), uuid4(), quick=quick):
        permits.append(permit)
    return permits
