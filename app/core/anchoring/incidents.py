"""Incidents: one row for each part of anchoring that fails, from beginning to end.

An incident is reported once when it opens and once when it ends. An alarm is an incident that says
that a witness has seen another log under our name.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.database import after_commit, cursor
from app.models import AnchoringTrouble

_log = structlog.get_logger(__name__)

_ADD = """
INSERT INTO anchoring_troubles (part, since, detail, alarm) VALUES (%s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
# An alarm's detail stays: a witness that is unreachable as well does not replace it.
_CHANGE = """
UPDATE anchoring_troubles SET detail = %(detail)s, alarm = alarm OR %(alarm)s
 WHERE part = %(part)s AND (%(alarm)s OR NOT alarm)
"""
_END = "DELETE FROM anchoring_troubles WHERE part = %s"
_OTHERS = "DELETE FROM anchoring_troubles WHERE part <> ALL (%s) RETURNING part"


def begin(
    session: Session, part: str, since: datetime, detail: str, *, alarm: bool = False
) -> None:
    """Note that nothing was anchored by this part since `since`, and why; say it when it is new."""
    cur = cursor(session)
    known = cur.execute(
        "SELECT alarm FROM anchoring_troubles WHERE part = %s FOR UPDATE", (part,)
    ).fetchone()
    if known is None:
        is_new = cur.execute(_ADD, (part, since, detail, alarm)).rowcount == 1
    else:
        is_new = alarm and not known[0]
        cur.execute(_CHANGE, {"part": part, "detail": detail, "alarm": alarm})
    if is_new:
        say = _log.critical if alarm else _log.error
        event = "witness_alarm" if alarm else "unanchored"
        after_commit(session, lambda: say(event, part=part, since=since.isoformat(), detail=detail))


def end(session: Session, part: str) -> None:
    """Note that this part anchors again."""
    if cursor(session).execute(_END, (part,)).rowcount:
        after_commit(session, lambda: _log.warning("anchoring_recovered", part=part))


def keep(session: Session, parts: Collection[str]) -> None:
    """Forget the troubles of every other part: it is not asked for any more."""
    for (part,) in cursor(session).execute(_OTHERS, (list(parts),)).fetchall():
        _log.warning("anchoring_part_removed", part=part)


def rows(session: Session) -> Sequence[AnchoringTrouble]:
    """Return what fails now: alarms first, then the longest."""
    return session.scalars(
        select(AnchoringTrouble).order_by(
            AnchoringTrouble.alarm.desc(), AnchoringTrouble.since, AnchoringTrouble.part
        )
    ).all()
