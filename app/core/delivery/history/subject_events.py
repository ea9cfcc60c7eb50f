"""Events of a session or record: those of its findings and its completion.

An event names its subject only in its payload, to spare each POST an index. Its id is generated
shortly before the finding's time, so the search covers ids around that time: first within a few
seconds, then as far as hosts' clocks may differ.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.delivery.history.delivery_attempts import CLOCKS_DIFFER_BY
from app.core.delivery.history.delivery_filters import TenantFilters
from app.database import cursor
from app.errors import FieldError, Invalid

MOST_SUBJECTS = 200
_WITHIN = (timedelta(seconds=2), timedelta(minutes=1), CLOCKS_DIFFER_BY)


class Subject(NamedTuple):
    """The subject of an event: a finding, or a session that was completed at `at`."""

    id: UUID
    at: datetime
    type: str
    prefix: str

    @property
    def mark(self) -> bytes:
        """The bytes that name the subject in its event's payload."""
        return f'"id":"{ids.text(self.prefix, self.id)}"'.encode()


_FINDINGS = """
SELECT id, created_at, 'finding.created', 'fnd' FROM findings
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND {conditions}
 ORDER BY id DESC LIMIT {limit}
"""
_COMPLETION = """
SELECT id, completed_at, 'session.completed', 'ses' FROM sessions
 WHERE tenant_id = %(tenant)s AND id = %(session)s AND completed_at IS NOT NULL
"""
_EVENTS = """
SELECT about.n, found.id
  FROM unnest(%(froms)s::uuid[], %(tos)s::uuid[], %(types)s::text[], %(moments)s::timestamptz[],
              %(marks)s::bytea[])
       WITH ORDINALITY AS about (first_id, last_id, type, at, mark, n)
 CROSS JOIN LATERAL (
    SELECT e.id FROM events AS e
     WHERE e.tenant_id = (SELECT %(tenant)s::uuid) AND e.id BETWEEN about.first_id AND about.last_id
       AND e.created_at = about.at AND e.type = about.type AND position(about.mark IN e.payload) > 0
     LIMIT 1) AS found
"""


def asked_for(session: Session, tenant_id: UUID, filters: TenantFilters) -> list[UUID] | None:
    """Return the events that the filters select; None for no restriction by event.

    Raises `Invalid` as `find` does.
    """
    named = [] if filters.event_id is None else [filters.event_id]
    if filters.session_id is None and filters.record_id is None:
        return named or None
    about = find(session, tenant_id, filters.session_id, filters.record_id)
    return [each for each in about if not named or each in named]


def find(
    session: Session, tenant_id: UUID, session_id: UUID | None, record_id: UUID | None
) -> list[UUID]:
    """Return the kept events about a session, a record, or both.

    Raises `Invalid` when they have too many findings to search for.
    """
    waiting = _subjects(session, tenant_id, session_id, record_id)
    if len(waiting) > MOST_SUBJECTS:
        name = "session_id" if record_id is None else "record_id"
        raise Invalid(
            FieldError(
                f"/{name}",
                f"Query parameter: this has more than {MOST_SUBJECTS} findings; list these, and "
                "ask by event_id.",
            )
        )
    events: list[UUID] = []
    for within in _WITHIN:
        found = _events(session, tenant_id, waiting, within)
        events += found.values()
        waiting = [each for n, each in enumerate(waiting, 1) if n not in found]
    return events


def _subjects(
    session: Session, tenant_id: UUID, session_id: UUID | None, record_id: UUID | None
) -> list[Subject]:
    values = {"tenant": tenant_id, "session": session_id, "record": record_id}
    asked = [
        f"{name}_id = (SELECT %({name})s::uuid)"
        for name in ("session", "record")
        if values[name] is not None
    ]
    query = _FINDINGS.format(conditions=" AND ".join(asked), limit=MOST_SUBJECTS + 1)
    found: Iterable[tuple[object, ...]] = cursor(session).execute(query, values).fetchall()
    subjects = [Subject._make(row) for row in found]
    if record_id is None:
        completed = cursor(session).execute(_COMPLETION, values).fetchall()
        subjects += [Subject._make(row) for row in completed]
    return subjects


def _events(
    session: Session, tenant_id: UUID, subjects: Sequence[Subject], within: timedelta
) -> dict[int, UUID]:
    """Return the events of subjects, by position (from 1), with ids `within` the subject's time."""
    if not subjects:
        return {}
    found = cursor(session).execute(
        _EVENTS,
        {
            "tenant": tenant_id,
            "froms": [ids.earliest_at(each.at - within) for each in subjects],
            "tos": [ids.latest_at(each.at + within) for each in subjects],
            "types": [each.type for each in subjects],
            "moments": [each.at for each in subjects],
            "marks": [each.mark for each in subjects],
        },
    )
    return {n: event_id for n, event_id in found.fetchall()}  # noqa: C416  # of rows, typed
