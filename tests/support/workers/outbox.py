"""A tenant's webhooks, events and deliveries, without a worker that sends them."""

from typing import Any, Self
from uuid import UUID

from sqlalchemy import text

from app import clock, ids
from app.core import tenants
from app.core.callers import Caller, Role
from app.core.delivery import accounting, claims, events, sweeping
from app.core.delivery.claims import Claimed
from app.core.delivery.events import NewEvent
from app.core.delivery.lanes import lanes
from app.core.webhooks import webhooks
from app.database import Database
from app.settings import Settings
from tests.support.secrets import MASTER_KEYS

# Nothing listens on this port.
NO_RECEIVER = "http://127.0.0.1:9/"


class Outbox:
    """The webhooks, events and deliveries of one tenant."""

    def __init__(self, database: Database, settings: Settings, tenant_id: UUID) -> None:
        self.database = database
        self.settings = settings
        self.tenant_id = tenant_id
        self.caller = Caller(tenant_id, ids.new(), Role.ADMIN, None, "test")
        # The first signing secret of each webhook.
        self.secrets: dict[UUID, str] = {}

    @classmethod
    def of_new_tenant(cls, database: Database, settings: Settings) -> Self:
        """Make a tenant; return its outbox."""
        return cls(database, settings, tenants.create(database, MASTER_KEYS, "a sender")[0])

    def webhook(self, url: str = NO_RECEIVER, **fields: Any) -> UUID:
        with self.database.transaction(self.tenant_id) as session:
            made, secret = webhooks.create(
                session, self.caller, self.settings, {"url": url, **fields}
            )
        self.secrets[made.id] = secret
        return made.id

    def change(self, webhook: UUID, **fields: Any) -> None:
        with self.database.transaction(self.tenant_id) as session:
            webhooks.change(session, self.caller, self.settings, webhook, fields)

    def delete(self, webhook: UUID) -> None:
        with self.database.transaction(self.tenant_id) as session:
            webhooks.delete(session, self.caller, webhook)

    def emit(self, count: int = 1, data: dict[str, Any] | None = None) -> list[UUID]:
        with self.database.transaction(self.tenant_id) as session:
            event = NewEvent("finding.created", data or {}, clock.now())
            return events.emit(session, self.tenant_id, [event] * count)

    def number(self, webhook: UUID) -> int:
        """Give numbers to what has none; return how many there were."""
        with self.database.transaction(self.tenant_id) as session:
            return lanes.number(session, self.tenant_id, webhook)

    def claim(self, webhook: UUID, limit: int = 10) -> list[Claimed]:
        with self.database.transaction(self.tenant_id) as session:
            lane = lanes.load(session, self.tenant_id, webhook)
            assert lane is not None
            return claims.claim(session, lane, limit)()

    def swept(self) -> set[UUID]:
        """Return the webhooks, of any tenant, that a sweep would ring now."""
        with self.database.across_tenants() as session:
            sweeping.wake(session)
            return {webhook for _, webhook in sweeping.due(session)["deliver"]}

    def run(self, sql: str, **values: Any) -> None:
        with self.database.transaction(self.tenant_id) as session:
            session.execute(text(sql), values)

    def rows(self, sql: str, **values: Any) -> list[Any]:
        with self.database.transaction(self.tenant_id) as session:
            return list(session.execute(text(sql), values).mappings())

    def deliveries(self, webhook: UUID) -> list[Any]:
        return self.rows(
            "SELECT * FROM deliveries WHERE webhook_id = :w ORDER BY sequence, id", w=webhook
        )

    def attempts(self) -> list[Any]:
        return self.rows("SELECT * FROM delivery_attempts ORDER BY started_at, number")

    def lane(self, webhook: UUID) -> Any:
        return self.rows("SELECT * FROM lanes WHERE webhook_id = :w", w=webhook)[0]

    def books(self, webhook: UUID, *, exact: bool = False) -> dict[str, Any]:
        """Return the webhook's accounting."""
        with self.database.transaction(self.tenant_id) as session:
            return accounting.of(session, self.tenant_id, webhook, exact=exact)
