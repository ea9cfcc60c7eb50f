"""One tenant and a worker's runtime, with what tests of deliveries do to them."""

from typing import Any
from uuid import UUID

from sqlalchemy import text

from app import clock, ids
from app.core.callers import Caller, Role
from app.core.delivery import accounting, events
from app.core.delivery.events import NewEvent
from app.core.webhooks import webhooks
from jobs.delivery.lane_run import LaneRun
from jobs.process.runtime import Runtime
from tests.support.workers.lanes import has_answered


class World:
    """One tenant, a worker's runtime, and what a test does with them."""

    def __init__(self, runtime: Runtime, tenant_id: UUID) -> None:
        self.runtime = runtime
        self.caller = Caller(tenant_id, ids.new(), Role.ADMIN, None, "test")
        self.tenant_id = tenant_id

    def webhook(self, url: str, **fields: Any) -> tuple[UUID, str]:
        with self.runtime.database.transaction(self.tenant_id) as session:
            made, secret = webhooks.create(
                session, self.caller, self.runtime.settings, {"url": url, **fields}
            )
            return made.id, secret

    def emit(self, count: int = 1, kind: str = "finding.created") -> list[UUID]:
        with self.runtime.database.transaction(self.tenant_id) as session:
            at = clock.now()
            return events.emit(
                session, self.tenant_id, [NewEvent(kind, {"n": n}, at) for n in range(count)]
            )

    def turn(self, webhook: UUID) -> None:
        LaneRun(self.runtime, self.tenant_id, webhook).run()

    def has_answered(self, webhook: UUID, **known: Any) -> None:
        with self.runtime.database.transaction(self.tenant_id) as session:
            has_answered(session, webhook, **known)

    def change(self, webhook: UUID, **fields: Any) -> None:
        with self.runtime.database.transaction(self.tenant_id) as session:
            webhooks.change(session, self.caller, self.runtime.settings, webhook, fields)

    def rows(self, sql: str, **values: Any) -> list[Any]:
        with self.runtime.database.transaction(self.tenant_id) as session:
            return list(session.execute(text(sql), values).mappings())

    def deliveries(self, webhook: UUID) -> list[Any]:
        return self.rows(
            "SELECT * FROM deliveries WHERE webhook_id = :w ORDER BY sequence, id", w=webhook
        )

    def attempts(self) -> list[Any]:
        return self.rows("SELECT * FROM delivery_attempts ORDER BY id")

    def lane(self, webhook: UUID) -> Any:
        return self.rows("SELECT * FROM lanes WHERE webhook_id = :w", w=webhook)[0]

    def books(self, webhook: UUID) -> dict[str, Any]:
        with self.runtime.database.transaction(self.tenant_id) as session:
            return accounting.of(session, self.tenant_id, webhook)
