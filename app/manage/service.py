"""Shared by the commands: settings and database, a confirmation, a warning."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

from app import ids, logs
from app.core.verification import alerts
from app.database import Database
from app.errors import AuditChainBroken, Conflict
from app.settings import Settings, load


@contextmanager
def service() -> Iterator[tuple[Settings, Database]]:
    """Open the settings and the database, for a `with`."""
    settings = load()
    database = Database(settings.database_url, pool_size=2, application="record-service manage")
    try:
        yield settings, database
    finally:
        database.close()


def require_yes(arguments: argparse.Namespace, what: str) -> None:
    """Raise `Conflict` without --yes."""
    if not arguments.yes:
        raise Conflict(f"say --yes if {what}: it cannot be taken back")


def tell_untold(
    settings: Settings, database: Database, untold: Mapping[UUID, AuditChainBroken]
) -> None:
    """Name the broken chains that have no entry of what was just done."""
    logs.configure(settings)
    for tenant_id, error in untold.items():
        alerts.report_break(database, tenant_id, error)
        text = f"{error.detail} It has no entry of this; what was to be done is done."
        print(f"warning: {ids.text('ten', tenant_id)}: {text}", file=sys.stderr)
