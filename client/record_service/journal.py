"""Which files were pushed, so that a push which is run again doubles none.

A file is noted before it is sent and once it is answered. Between the two it is in doubt: for a day
the service repeats its first answer to the same API key, later its records are looked through.
"""

from __future__ import annotations

import time
from typing import Any

from record_service import state

# Of the 24 hours that the service keeps an Idempotency-Key.
KEPT_SECONDS = 23 * 3600
_SCHEMA = """
CREATE TABLE IF NOT EXISTS pushed (
    key TEXT PRIMARY KEY, begun_at REAL NOT NULL, api_key TEXT NOT NULL, record_id TEXT UNIQUE
) WITHOUT ROWID
"""


class Journal:
    """The pushes of one tenant; used by one thread."""

    def __init__(self, base_url: str, tenant_id: str, api_key_id: str) -> None:
        self._api_key = api_key_id
        file = f"pushed-{state.name(base_url, tenant_id)}.sqlite"
        self._database = state.database(file, _SCHEMA)

    def record(self, key: str) -> str | None:
        """Return the id of the record that a file has become."""
        row = self._one("SELECT record_id FROM pushed WHERE key = ?", key)
        return row[0] if row else None

    def stale_since(self, key: str) -> float | None:
        """Return when a file in doubt was sent, if the service would no longer know it again."""
        row = self._one(
            "SELECT begun_at, api_key FROM pushed WHERE key = ? AND record_id IS NULL", key
        )
        if row is None:
            return None
        begun_at, api_key = row
        known = api_key == self._api_key and time.time() < begun_at + KEPT_SECONDS
        return None if known else float(begun_at)

    def knows(self, record_id: str) -> bool:
        """Say whether a record is one that was pushed."""
        return self._one("SELECT 1 FROM pushed WHERE record_id = ?", record_id) is not None

    def begin(self, key: str) -> None:
        """Note that a file is about to be sent; of one in doubt the first time counts."""
        self._database.execute(
            "INSERT INTO pushed VALUES (?, ?, ?, NULL) ON CONFLICT DO NOTHING",
            (key, time.time(), self._api_key),
        )

    def finish(self, key: str, record_id: str) -> None:
        """Note which record a file has become."""
        self._database.execute("UPDATE pushed SET record_id = ? WHERE key = ?", (record_id, key))

    def forget(self, key: str) -> None:
        """Note that a file has become no record."""
        self._database.execute("DELETE FROM pushed WHERE key = ? AND record_id IS NULL", (key,))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _one(self, query: str, value: str) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._database.execute(query, (value,)).fetchone()
        return row
