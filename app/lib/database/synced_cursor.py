"""A cursor for pipelines that ends each fetched batch with Sync."""

from typing import Any, TypeVar

import psycopg
from psycopg.rows import RowFactory

_Row = TypeVar("_Row")


class SyncedCursor(psycopg.Cursor[_Row]):
    """Ends a pipelined batch with Sync when a result is fetched, where psycopg only flushes.

    The server counts a client's silence in a transaction from Sync on: a worker that is cut off
    before one would keep its locks until TCP notices.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        pipeline: psycopg.Pipeline,
        row_factory: RowFactory[_Row],
    ) -> None:
        super().__init__(connection, row_factory=row_factory)
        self._batch = pipeline

    def _fetch_pipeline(self) -> None:
        if self.pgresult is None and self.connection.info.pipeline_status:
            self._batch.sync()
        super()._fetch_pipeline()
