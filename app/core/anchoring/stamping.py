"""Stamping: a timestamp authority (RFC 3161) stamps each tick's checkpoint; its answer is kept.

Stamped are the bytes that are published: the note with the log's own signature only. The whole
answer is stored, beside the certificates that `openssl ts -verify` needs to check it.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.anchoring import asking, tick, troubles
from app.core.jobs import Errand, Failed, Step
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


def look(session: Session, last: Published) -> Job | None:
    """Enqueue the stamping of a tick's checkpoint; None when it is stamped."""
    if _is_stamped(session, last):
        return None
    number = last.generation.number
    return tick.order(
        session, last, kind=KIND, key="newest", part=PART, since=lambda: _since(session, number)
    )


@dataclass(frozen=True)
class Stamper:
    """Asks one authority; without a URL there is none, and nothing to do."""

    outbound: Outbound
    url: str | None
    trusted: tuple[Certificate, ...]

    def step(
        self, session: Session, _tenant_id: UUID, job: Job
    ) -> Step | Errand[Stamp | NotStamped]:
        """Have the checkpoint of the job's tick stamped."""
        url, last = self.url, tick.checkpoint(session, job)
        if url is None or last is None or _is_stamped(session, last):
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


def _is_stamped(session: Session, last: Published) -> bool:
    place = (last.generation.number, last.checkpoint.size)
    return cursor(session).execute(_IS_STAMPED, place).fetchone() is not None


def _record(
    session: Session, last: Published, said: Stamp | NotStamped, *, last_try: bool
) -> Step | Failed:
    number, size = last.generation.number, last.checkpoint.size
    if isinstance(said, NotStamped):
        if last_try or tick.is_late(session, last):
            troubles.begin(session, PART, _since(session, number), str(said))
        return Failed(str(said), for_good=last_try)
    values = (number, size, said.response, said.chain, said.gen_time)
    cursor(session).execute(_STORE, values)
    troubles.end(session, PART)
    return Step(None, {"size": size, "at": rfc3339(said.gen_time)})


def _since(session: Session, generation: int) -> datetime:
    row = cursor(session).execute(_SINCE, {"generation": generation}).fetchone()
    return database_now(session) if row is None else row[0]
