"""Stamping: the newest checkpoint goes to a timestamp authority (RFC 3161), and its answer is kept.

Stamped are the bytes that are published: the note with the log's own signature only. The whole
answer is stored, beside the certificates that `openssl ts -verify` needs to check it.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import jobs
from app.core.anchoring import asking, troubles
from app.core.jobs import Errand, Failed, Step
from app.core.log import publication
from app.core.log.publication import Published
from app.database import cursor, database_now
from app.lib import timestamps
from app.lib.outbound import Outbound
from app.lib.timestamps import NotStamped, Stamp
from app.models import Job

KIND = "stamp_checkpoint"
PART = "timestamps"

_IS_STAMPED = "SELECT FROM checkpoint_timestamps WHERE generation = %s AND size = %s"
_STORE = """
INSERT INTO checkpoint_timestamps (generation, size, response, tsa_chain, gen_time)
VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
# The first checkpoint behind the last one that was stamped.
_SINCE = """
SELECT published_at FROM checkpoints
 WHERE generation = %(generation)s AND note IS NOT NULL
   AND size > coalesce((SELECT max(size) FROM checkpoint_timestamps
                         WHERE generation = %(generation)s), 0)
 ORDER BY size LIMIT 1
"""


def look(session: Session) -> Job | None:
    """Enqueue the stamping of the newest checkpoint; None when it is stamped, or the log empty."""
    if _due(session) is None:
        return None
    return jobs.recur(session, kind=KIND, dedupe_key="newest", args={})


@dataclass(frozen=True)
class Stamper:
    """Asks one authority; without a URL there is none, and nothing to do."""

    outbound: Outbound
    url: str | None
    trusted: tuple[Certificate, ...]

    def step(
        self, session: Session, _tenant_id: UUID, job: Job
    ) -> Step | Errand[Stamp | NotStamped]:
        """Have the newest checkpoint stamped, whichever that is by now."""
        url, last = self.url, _due(session)
        if url is None or last is None:
            return Step(None, {})
        return Errand(
            lambda: self._ask(url, last),
            lambda then, said: _record(then, last, said, last_try=asking.was_last(job)),
        )

    def _ask(self, url: str, last: Published) -> Stamp | NotStamped:
        asked = timestamps.request(last.note)
        headers = {"Content-Type": timestamps.CONTENT_TYPE}
        try:
            body = asking.post(self.outbound, url, asked.as_bytes(), headers).ok()
            return timestamps.check(body, asked, last.note, self.trusted)
        except asking.NoAnswer as error:
            return NotStamped(str(error))
        except NotStamped as error:
            return error


def _due(session: Session) -> Published | None:
    last = publication.current(session)
    if last is None or last.checkpoint.size == 0:
        return None
    place = (last.generation.number, last.checkpoint.size)
    stamped = cursor(session).execute(_IS_STAMPED, place).fetchone()
    return last if stamped is None else None


def _record(
    session: Session, last: Published, said: Stamp | NotStamped, *, last_try: bool
) -> Step | Failed:
    number, size = last.generation.number, last.checkpoint.size
    if isinstance(said, NotStamped):
        troubles.begin(session, PART, _since(session, number), str(said))
        return Failed(str(said), for_good=last_try)
    values = (number, size, said.response, said.chain, said.gen_time)
    cursor(session).execute(_STORE, values)
    troubles.end(session, PART)
    return Step(None, {"size": size, "at": rfc3339(said.gen_time)})


def _since(session: Session, generation: int) -> datetime:
    row = cursor(session).execute(_SINCE, {"generation": generation}).fetchone()
    return database_now(session) if row is None else row[0]
