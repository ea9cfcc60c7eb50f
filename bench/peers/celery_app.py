"""A Celery worker with the same writes for each delivery: claim, then outcome and attempt."""

import os
from typing import Any

import psycopg
import requests
from celery import Celery

app = Celery("bench", broker=os.environ["PEER_REDIS_URL"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)

_CLAIM = """
UPDATE deliveries SET status = 'sending', attempts = attempts + 1, claimed_at = clock_timestamp()
 WHERE id = %s AND status = 'pending' RETURNING url, payload, claimed_at
"""
_FINISH = """
UPDATE deliveries SET status = 'succeeded', finished_at = clock_timestamp() WHERE id = %s
"""
_ATTEMPT = """
INSERT INTO attempts (delivery_id, status_code, started_at, total_ms, headers, body)
VALUES (%s, %s, %s, %s, %s, %s)
"""


class _Process:
    """What each forked process opens once."""

    connection: "psycopg.Connection[tuple[Any, ...]] | None" = None
    session = requests.Session()


def _connection() -> "psycopg.Connection[tuple[Any, ...]]":
    if _Process.connection is None:
        _Process.connection = psycopg.connect(os.environ["PEER_DATABASE_URL"])
    return _Process.connection


@app.task  # type: ignore[untyped-decorator]
def deliver(delivery_id: int) -> None:
    """Send one delivery and record it."""
    connection = _connection()
    with connection.transaction():
        claimed = connection.execute(_CLAIM, (delivery_id,)).fetchone()
    if claimed is None:
        return
    url, payload, claimed_at = claimed
    answer = _Process.session.post(
        url, payload, headers={"Content-Type": "application/json"}, timeout=15
    )
    total = answer.elapsed.total_seconds() * 1000
    headers = str(dict(answer.headers))
    with connection.transaction():
        connection.execute(_FINISH, (delivery_id,))
        connection.execute(
            _ATTEMPT,
            (delivery_id, answer.status_code, claimed_at, total, headers, answer.content),
        )
