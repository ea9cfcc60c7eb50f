"""Shared by the commands: settings and database, a confirmation, texts, a warning."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

import click

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


def line(most: int = 200) -> Callable[[str], str]:
    """Return what reads an option of one line, of at most so many characters."""

    def text(given: str) -> str:
        if not re.fullmatch(rf"[^\x00-\x1f\x7f]{{1,{most}}}", given) or not given.strip():
            raise click.BadParameter(f"write one line of 1 to {most} characters")
        return given.strip()

    return text


def require_yes(yes: bool, what: str) -> None:
    """Raise `Conflict` without --yes."""
    if not yes:
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
