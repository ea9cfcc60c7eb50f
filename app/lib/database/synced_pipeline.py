"""A pipeline whose statements leave together with a Sync, and its cursor."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import RowFactory

_Row = TypeVar("_Row")


class SyncedPipeline(psycopg.Pipeline):
    """Sends nothing before a Sync, where psycopg sends each statement as it is executed.

    The server counts a client's silence in a transaction from Sync on. A host that is cut off
    between a statement and its Sync would keep its locks until TCP notices.
    """

    def _enqueue_sync(self) -> None:
        super()._enqueue_sync()
        # All at once into libpq's buffer: psycopg waits for the socket before each command.
        while self.command_queue:
            self.command_queue.popleft()()

    def _communicate_gen(self) -> PQGen[None]:
        if not self.command_queue:
            yield from super()._communicate_gen()


class SyncedCursor(psycopg.Cursor[_Row]):
    """Ends a pipelined batch with Sync when a result is fetched, where psycopg only flushes."""

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


@contextmanager
def synced_pipeline(connection: psycopg.Connection[Any]) -> Iterator[psycopg.Pipeline]:
    """Open such a pipeline on a connection, for the length of the `with`."""
    # It enters the pipeline that is there, and makes psycopg's own only where there is none.
    connection._pipeline = SyncedPipeline(connection)  # noqa: SLF001  # psycopg has no other way
    with connection.pipeline() as pipeline:
        yield pipeline
