"""Steps of an export's job, and the parts that they write: in PostgreSQL or in the object store.

A part is written once and read alone, so neither side holds an export. Each is sealed for its
place.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.blobs import reading, rows, store
from app.core.blobs.reading import Vanished
from app.core.blobs.store import Item, Stowed, cut
from app.core.exports.reading import Period
from app.core.jobs.steps import Failed, Step
from app.database import Database, carried, cursor
from app.evidence.period_export import Draft
from app.models import Export
from app.settings import Settings

KIND = "export_parts"
PART_BYTES = 1024 * 1024

_ADD = """
INSERT INTO export_parts (tenant_id, export_id, starts, size, bytes, blob)
VALUES (%s, %s, %s, %s, %b, %s)
"""
_HOLDING = """
SELECT size, export_id, starts, bytes, blob FROM export_parts
 WHERE tenant_id = %s AND export_id = %s AND starts <= %s ORDER BY starts DESC LIMIT 1
"""
_DELETE = """
DELETE FROM export_parts WHERE tenant_id = %s AND export_id = %s AND starts = ANY (ARRAY(
    SELECT starts FROM export_parts WHERE tenant_id = %s AND export_id = %s LIMIT %s))
"""


class Part(NamedTuple):
    """A part to be stored: where it begins in the stream, and its bytes."""

    starts: int
    content: bytes


def identity(tenant_id: UUID, export_id: UUID, starts: int) -> str:
    """Name the place of a part, for which it is sealed."""
    return f"{KIND}/{tenant_id}/{export_id}/{starts}"


def stow(settings: Settings, place: tuple[UUID, UUID], parts: Sequence[Part]) -> list[Stowed]:
    """Seal parts, and store them where `BLOB_URL` says; outside a transaction."""
    items = [
        Item(KIND, *place, starts, settings.master_keys.seal(content, identity(*place, starts)))
        for starts, content in parts
    ]
    return store.stow(store.of(settings.blob_url), items)


def add(
    session: Session, place: tuple[UUID, UUID], parts: Sequence[Part], stowed: Sequence[Stowed]
) -> None:
    """Add the rows of stored parts. Raises `Vanished` for one that was stored long ago."""
    for part, kept in zip(parts, stowed, strict=True):
        rows.require_fresh(session, kept)
        cursor(session).execute(_ADD, (*place, part.starts, len(part.content), *kept))
        carried(session, len(part.content))


def stream(
    database: Database, settings: Settings, place: tuple[UUID, UUID], start: int, stop: int
) -> Iterator[bytes]:
    """Yield the bytes from `start` up to `stop`, each part read in a transaction of its own.

    `place` is tenant and export. Raises `Vanished`, `CannotOpen` and `Unavailable`.
    """

    def read(at: int) -> tuple[int, bytes]:
        with database.transaction(place[0]) as session:
            found = cursor(session).execute(_HOLDING, (*place, at), binary=True).fetchone()
            if found is None or at >= found[2] + found[0]:
                raise Vanished
            row = reading.Row(*found[1:])
            named = identity(*place, row.number)
            return row.number, reading.opened(settings.master_keys, KIND, place[0], row, named)

    return reading.stream(store.of(settings.blob_url), read, start, stop)


def delete_some(session: Session, tenant_id: UUID, export_id: UUID, most: int) -> bool:
    """Delete the rows of some parts; say whether that was all."""
    place = (tenant_id, export_id)
    return cursor(session).execute(_DELETE, (*place, *place, most)).rowcount < most


State = dict[str, Any]
BEGIN: State = {"phase": "settling"}

_A_MOMENT = timedelta(seconds=1)


@dataclass(frozen=True)
class Written:
    """What a step wrote, to be stored with its cursor."""

    step: Step | Failed
    parts: Sequence[Part] = ()
    stowed: Sequence[Stowed] = ()
    restart: bool = False
    signed: tuple[int, bytes, str, bytes] | None = None
    digest: bytes | None = None


class Turn:
    """One step of an export: its row, and the state that the step moves on."""

    def __init__(self, export: Export, state: State) -> None:
        self.export = export
        self.state = dict(state)
        self.tenant_id = export.tenant_id
        self.place = (export.tenant_id, export.id)
        self.period = Period(export.tenant_id, export.since, export.until, export.agent_id)

    def progress(self, phase: str) -> dict[str, Any]:
        """Return what is shown of the job."""
        return {
            "export_id": ids.text("exp", self.export.id),
            "phase": phase,
            "records": self.state.get("draft", {}).get("totals", {}).get("records", 0),
            "total": self.state.get("records"),
            "bytes": self.state.get("bytes", 0),
        }

    def go(self, phase: str, wait: timedelta = timedelta(0), **more: Any) -> Written:
        """Go on in a phase."""
        self.state.update(phase=phase, **more)
        return Written(Step(json.dumps(self.state), self.progress(phase), wait))

    def wait(self, **more: Any) -> Written:
        """Come back to the same phase in a second."""
        return self.go(self.state["phase"], _A_MOMENT, **more)

    def restart(self, **kept: Any) -> Written:
        """Begin anew, without what was written."""
        self.state = {**BEGIN, **kept}
        step = Step(json.dumps(self.state), self.progress("settling"), _A_MOMENT)
        return Written(step, restart=True)

    def write(
        self,
        phase: str,
        draft: Draft,
        lines: Sequence[bytes],
        *,
        signed: tuple[int, bytes, str, bytes] | None = None,
        **more: Any,
    ) -> Written:
        """Go on in a phase behind these lines."""
        made = []
        for part in cut(lines, PART_BYTES):
            made.append(Part(self.state["bytes"], part))
            self.state["bytes"] += len(part)
        gone = self.go(phase, draft=draft.dump(), **more)
        return Written(gone.step, made, signed=signed)
