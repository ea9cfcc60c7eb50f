"""Timestamping: an authority (RFC 3161) timestamps each tick's checkpoint.

The timestamp is over the published note with the log's own signature. The whole response is stored,
with the certificates that `openssl ts -verify` needs. A stored one is verified before it counts,
and replaced if invalid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from uuid import UUID

import structlog
from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.core.anchoring import checkpoint_round, incidents
from app.core.anchoring.evidence import CheckpointCache
from app.core.jobs.steps import Errand, Failed, Step
from app.core.log.publication import Published
from app.database import after_commit, cursor
from app.evidence import timestamps
from app.evidence.timestamps import NotStamped, Stamp
from app.lib.outbound.client import Outbound
from app.models import Job
from app.settings import Settings

KIND = "stamp_checkpoint"
PART = "timestamps"

_LOGIN_NEEDED = (401, 403, 407)

_log = structlog.get_logger(__name__)

_LOCK = "SELECT FROM checkpoint_timestamps WHERE generation = %s AND size = %s FOR UPDATE"
_DROP = "DELETE FROM checkpoint_timestamps WHERE generation = %s AND size = %s"
_STORE = """
INSERT INTO checkpoint_timestamps (generation, size, response, tsa_chain)
VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
_NEWEST = """
SELECT size FROM checkpoint_timestamps WHERE generation = %s ORDER BY size DESC LIMIT %s
"""


def enqueue_due(session: Session, last: Published, trusted: Sequence[Certificate]) -> None:
    """Enqueue the stamping of a tick's checkpoint, unless it is, by a root of `trusted`."""
    cache = CheckpointCache(session, last.generation, trusted)
    if not cache.is_stamped(last.checkpoint.size):
        since = partial(_since, session, last, cache)
        checkpoint_round.order(session, last, kind=KIND, key="newest", part=PART, since=since)


@dataclass(frozen=True)
class Authority:
    """Where an authority is, the value of the Authorization header that it asks for, its roots."""

    url: str
    authorization: str | None = field(repr=False)
    trusted: Sequence[Certificate]

    @classmethod
    def of(cls, settings: Settings) -> "Authority | None":
        """Return the authority that the operator chose, if any."""
        if settings.tsa_url is None:
            return None
        return cls(settings.tsa_url, settings.tsa_authorization, settings.tsa_ca_file)


def ask(outbound: Outbound, authority: Authority, data: bytes) -> Stamp | NotStamped:
    """Ask an authority for a timestamp of `data`, outside any transaction."""
    asked = timestamps.request(data)
    headers = {"Content-Type": timestamps.CONTENT_TYPE}
    if authority.authorization is not None:
        headers["Authorization"] = authority.authorization
    try:
        reply = checkpoint_round.post(outbound, authority.url, asked.as_bytes(), headers)
        if reply.status in _LOGIN_NEEDED:
            raise checkpoint_round.NoAnswer(
                f"It answered with the status {reply.status}: TSA_AUTHORIZATION is not what it asks"
                " for, or not set."
            )
        return timestamps.check(reply.ok(), asked, data, authority.trusted)
    except checkpoint_round.NoAnswer as error:
        return NotStamped(str(error))
    except NotStamped as error:
        return error


@dataclass(frozen=True)
class Stamper:
    """Asks one authority; without one there is nothing to do."""

    outbound: Outbound
    authority: Authority | None

    def step(
        self, session: Session, _tenant_id: UUID, job: Job
    ) -> Step | Errand[Stamp | NotStamped]:
        """Have the checkpoint of the job's tick stamped."""
        authority, last = self.authority, checkpoint_round.checkpoint(session, job)
        if authority is None or last is None:
            return Step(None, {})
        size, trusted = last.checkpoint.size, authority.trusted
        if CheckpointCache(session, last.generation, trusted).is_stamped(size):
            return Step(None, {})

        def record(then: Session, outcome: Stamp | NotStamped) -> Step | Failed:
            if isinstance(outcome, NotStamped):
                return checkpoint_round.failed(job, str(outcome))
            cur, place = cursor(then), (last.generation.number, size)
            # Another worker may have stored a stamp by now: that is kept, if it holds.
            cur.execute(_LOCK, place)
            if not CheckpointCache(then, last.generation, trusted).is_stamped(size):
                if cur.execute(_DROP, place).rowcount:
                    say = partial(_log.warning, "timestamp_replaced", generation=place[0])
                    after_commit(then, partial(say, size=size))
                cur.execute(_STORE, (*place, outcome.response, outcome.chain))
            incidents.end(then, PART)
            return Step(None, {"size": size, "at": outcome.time})

        return Errand(lambda: ask(self.outbound, authority, last.note), record)


def _since(session: Session, last: Published, cache: CheckpointCache) -> datetime:
    """Return when the first checkpoint was published behind all that are stamped."""
    number = last.generation.number
    rows = cursor(session).execute(_NEWEST, (number, checkpoint_round.MOST_VERIFIED)).fetchall()
    sizes = [row[0] for row in rows]
    return checkpoint_round.unvouched_since(session, number, sizes, cache.is_stamped)
