"""A tenant with webhooks, and the gauges of its database."""

from typing import Any
from uuid import UUID

from sqlalchemy import text

from app import clock, ids
from app.core import tenants
from app.core.callers import Caller, Role
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.core.health import gauges
from app.core.health.gauges import Gauges
from app.core.webhooks import webhooks
from app.database import Database
from app.settings import Settings
from tests.support.secrets import MASTER_KEYS


class Place:
    """Tenants with webhooks in a database of their own."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.tenant_id, _ = tenants.create(database, MASTER_KEYS, "looked at")

    def webhook(self) -> UUID:
        caller = Caller(self.tenant_id, ids.new(), Role.ADMIN, None, "test")
        with self.database.transaction(self.tenant_id) as session:
            wanted = {"url": "http://127.0.0.1:9/"}
            return webhooks.create(session, caller, self.settings, wanted)[0].id

    def emit(self) -> None:
        with self.database.transaction(self.tenant_id) as session:
            events.emit(session, self.tenant_id, [NewEvent("finding.created", {}, clock.now())])

    def run(self, sql: str, **values: Any) -> None:
        with self.database.transaction(self.tenant_id) as session:
            session.execute(text(sql), values)

    def gauges(self) -> Gauges:
        with self.database.across_tenants() as session:
            return gauges.read(session)
