"""Pooled connections: replaced if the server has closed them, closed if their pool has gone."""

import select

import psycopg
from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

_NEW = "record_service.new"


def replace_at_checkout(engine: Engine) -> None:
    """Check each connection of the pool when it is taken out.

    An idle one that is readable was closed: this costs microseconds, a pre-ping a round trip. One
    made for this checkout is not checked: the pool replaces only twice, then raises another error.
    """
    event.listen(engine, "connect", _note_new)
    event.listen(engine, "checkout", _refuse_closed)


def close_at_checkin(engine: Engine) -> None:
    """Close each connection that is returned to the pool from now on.

    For an engine that is about to be disposed of: disposing closes only the idle connections.
    """
    event.listen(engine, "checkin", _close)


def _close(_connection: object, entry: ConnectionPoolEntry) -> None:
    entry.close()


def _note_new(_connection: object, entry: ConnectionPoolEntry) -> None:
    entry.info[_NEW] = True


def _refuse_closed(
    connection: "psycopg.Connection[object]", entry: ConnectionPoolEntry, _proxy: object
) -> None:
    if entry.info.pop(_NEW, False):
        return
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise InvalidatePoolError
