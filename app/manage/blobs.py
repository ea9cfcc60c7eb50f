"""The commands `python -m app.manage blobs …`."""

import click

from app.core.blobs import rows, store
from app.core.blobs.store import PLACES
from app.core.erasure import erasing, moving
from app.errors import Unavailable
from app.manage.service import service

_MOST_TOLD = 20
_UNSET = "BLOB_URL is not set: it names the object store."


@click.group()
def blobs() -> None:
    """Manage what lies in the object store."""


@blobs.command()
def status() -> None:
    """Show where bytes lie, and what moves."""
    with service() as (_settings, database), database.across_tenants() as session:
        for table in PLACES:
            counts = rows.count(session, table)
            print(f"{table}: " + ", ".join(f"{count} {where}" for where, count in counts.items()))
        since = erasing.late_since(session)
        print("to be erased: " + ("nothing" if since is None else f"since {since:%F %T %Z}"))
        for line in moving.lines(session):
            print(line)


@blobs.command()
@click.argument("to", type=click.Choice((moving.OBJECTS, moving.DATABASE)))
def move(to: str) -> None:
    """Have a job move everything, either way."""
    with service() as (settings, database):
        if settings.blob_url is None:
            raise Unavailable(_UNSET)
        with database.across_tenants() as session:
            moving.order(session, to)
    print("ordered: `python -m app.manage blobs status` shows how far it is")


@blobs.command()
def check() -> int:
    """Look for the object of every row; exit 1 if one is lost."""
    lost = 0
    with service() as (settings, database):
        objects = store.of(settings.blob_url)
        if objects is None:
            raise Unavailable(_UNSET)
        for table in PLACES:
            for some in rows.batches(database, table):
                for each in objects.missing(some):
                    lost += 1
                    if lost <= _MOST_TOLD:
                        print(f"lost: {each.name}")
    print(f"{lost} objects are lost" if lost else "every row's object is there")
    return 1 if lost else 0
