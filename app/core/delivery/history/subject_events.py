"""Events of a session, record or finding: of findings, and of the session's completion.

An event has the id of its subject, without an index, to spare each POST that. Its own id has the
millisecond of the finding's creation or the session's completion, which is where it is searched.
"""

from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.delivery.history.delivery_filters import Filters
from app.database import cursor
from app.errors import FieldError, Invalid

MOST_SUBJECTS = 200

_FINDINGS = """
SELECT id, created_at FROM findings
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND {conditions}
 ORDER BY id DESC LIMIT {limit}
"""
_COMPLETION = """
SELECT id, completed_at FROM sessions
 WHERE tenant_id = %(tenant)s AND id = %(session_id)s AND completed_at IS NOT NULL
"""
_EVENTS = """
SELECT found.id
  FROM unnest(%(subjects)s::uuid[], %(firsts)s::uuid[], %(lasts)s::uuid[])
       AS about (subject_id, first_id, last_id)
 CROSS JOIN LATERAL (
    SELECT e.id FROM stored_events AS e
     WHERE e.tenant_id = (SELECT %(tenant)s::uuid) AND e.id BETWEEN about.first_id AND about.last_id
       AND e.subject_id = about.subject_id
     LIMIT 1) AS found
"""


def asked_for(session: Session, tenant_id: UUID, filters: Filters) -> list[UUID] | None:
    """Return the events that the filters select; None for no restriction by event.

    Raises `Invalid` when the session or record has too many findings to search for.
    """
    named = [] if filters.event_id is None else [filters.event_id]
    wanted = {
        "session_id": filters.session_id,
        "record_id": filters.record_id,
        "id": filters.finding_id,
    }
    conditions = [
        f"{name} = (SELECT %({name})s::uuid)" for name in wanted if wanted[name] is not None
    ]
    if not conditions:
        return named or None
    values: dict[str, object] = {"tenant": tenant_id, **wanted}
    query = _FINDINGS.format(conditions=" AND ".join(conditions), limit=MOST_SUBJECTS + 1)
    subjects = cursor(session).execute(query, values).fetchall()
    if filters.record_id is None and filters.finding_id is None:
        subjects += cursor(session).execute(_COMPLETION, values).fetchall()
    if len(subjects) > MOST_SUBJECTS:
        name = "session_id" if filters.record_id is None else "record_id"
        raise Invalid(
            FieldError(
                f"/{name}",
                f"Query parameter: this has more than {MOST_SUBJECTS} findings; list these, and "
                "ask by event_id.",
            )
        )
    values = {
        "tenant": tenant_id,
        "subjects": [subject for subject, _ in subjects],
        "firsts": [ids.earliest_at(at) for _, at in subjects],
        "lasts": [ids.latest_at(at) for _, at in subjects],
    }
    events: list[UUID] = [row[0] for row in cursor(session).execute(_EVENTS, values)]
    return [each for each in events if not named or each in named]
