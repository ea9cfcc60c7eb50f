"""The commands `python -m app.manage blobs …`."""

import argparse

from app.core.blobs import rows, store
from app.core.blobs.store import PLACES
from app.core.erasure import erasing, moving
from app.errors import Unavailable
from app.manage.service import service

_MOST_TOLD = 20


def add(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `blobs`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("status", help="show where bytes lie, and what moves").set_defaults(
        run=_status
    )
    move = commands.add_parser("move", help="have a job move everything, either way")
    move.add_argument("to", choices=(moving.OBJECTS, moving.DATABASE))
    move.set_defaults(run=_move)
    commands.add_parser(
        "check", help="look for the object of every row; exit 1 if one is lost"
    ).set_defaults(run=_check)


def _status(_: argparse.Namespace) -> None:
    with service() as (_settings, database), database.across_tenants() as session:
        for table in PLACES:
            counts = rows.count(session, table)
            print(f"{table}: " + ", ".join(f"{count} {where}" for where, count in counts.items()))
        since = erasing.late_since(session)
        print("to be erased: " + ("nothing" if since is None else f"since {since:%F %T %Z}"))
        for line in moving.lines(session):
            print(line)


def _move(arguments: argparse.Namespace) -> None:
    with service() as (settings, database):
        if settings.blob_url is None:
            raise Unavailable("BLOB_URL is not set: it names the object store.")
        with database.across_tenants() as session:
            moving.order(session, arguments.to)
    print("ordered: `python -m app.manage blobs status` shows how far it is")


def _check(_: argparse.Namespace) -> int:
    lost = 0
    with service() as (settings, database):
        blobs = store.of(settings.blob_url)
        if blobs is None:
            raise Unavailable("BLOB_URL is not set: it names the object store.")
        for table in PLACES:
            for some in rows.batches(database, table):
                for each in blobs.missing(some):
                    lost += 1
                    if lost <= _MOST_TOLD:
                        print(f"lost: {each.name}")
    print(f"{lost} objects are lost" if lost else "every row's object is there")
    return 1 if lost else 0
