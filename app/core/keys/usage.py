"""The last use of each key, to the minute.

Requests note it in memory; a thread writes new uses every 20 seconds, in one statement. A killed
process loses the notes not yet written.
"""

import threading
import time
from uuid import UUID

from app.core.callers import Caller
from app.database import Database, cursor
from app.lib.repeater import Repeater

EVERY_SECONDS = 20.0
_LAST_WRITE_SECONDS = 1.0

# Rows are locked in one order everywhere, so two processes do not deadlock. A use after a key's end
# was refused, and does not count.
_WRITE = """
WITH used AS (
    SELECT tenant_id, id, clock_timestamp() - seconds * interval '1 second' AS at
      FROM unnest(%b::uuid[], %b::uuid[], %b::float8[]) AS new (tenant_id, id, seconds)
), stale AS (
    SELECT k.tenant_id, k.id, date_trunc('minute', used.at, 'UTC') AS minute
      FROM api_keys AS k JOIN used USING (tenant_id, id)
     WHERE (k.last_used_at IS NULL OR k.last_used_at < date_trunc('minute', used.at, 'UTC'))
       AND (k.revoked_at IS NULL OR k.revoked_at > used.at)
       AND (k.expires_at IS NULL OR k.expires_at > used.at)
     ORDER BY k.tenant_id, k.id FOR NO KEY UPDATE OF k
)
UPDATE api_keys AS k SET last_used_at = stale.minute
  FROM stale WHERE k.tenant_id = stale.tenant_id AND k.id = stale.id
"""


class KeyUsage:
    """Buffers the last uses of keys of one process until they are written."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._used: dict[tuple[UUID, UUID], float] = {}
        self._writing = threading.Lock()
        self._thread = Repeater(
            "key-usage",
            self._write,
            EVERY_SECONDS,
            failed="key_usage_not_written",
            at_end=_LAST_WRITE_SECONDS,
        )

    def note(self, caller: Caller) -> None:
        """Note in memory that a key was used now; executes no statement."""
        self._used[caller.tenant_id, caller.key_id] = time.monotonic()
        self._thread.begin()

    def write(self) -> None:
        """Write the uses noted since the last time; after an error the next call writes them."""
        self._thread.work()

    def close(self) -> None:
        """Write the remaining notes, for at most a second, and stop."""
        self._thread.close(_LAST_WRITE_SECONDS)

    def _write(self) -> None:
        with self._writing:
            # Copied atomically, as requests keep adding notes.
            used = self._used.copy()
            if not used:
                return
            now = time.monotonic()
            rows = [(*key, now - at) for key, at in used.items()]
            columns = [list(column) for column in zip(*rows, strict=True)]
            with self._database.across_tenants() as session:
                cursor(session).execute(_WRITE, columns)
            for key, at in used.items():
                # A key used again meanwhile is kept for the next write.
                if self._used.get(key) == at:
                    del self._used[key]
