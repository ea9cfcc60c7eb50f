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
from app.core.anchoring.checkpoint_cache import CheckpointCache
from app.core.jobs.steps import Errand, Failed, Step
from app.core.log.publication import Published
from app.database import after_commit, cursor
from app.lib.crypto import timestamps
from app.lib.crypto.timestamps import NotStamped, Stamp
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
INSERT INTO checkpoint_timestamps (generation, size, response, tsa_chain, gen_time)
VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
_NEWEST = """
SELECT size FROM checkpoint_timestamps WHERE generation = %s ORDER BY size DESC LIMIT %s
"""


def enqueue_due(session: Session, last: Published, trusted: Sequence[Certificate]) -> Job | None:
    """Enqueue the stamping of a tick's checkpoint; None when it is, by a root of `trusted`."""
    cache = CheckpointCache(session, last.generation, trusted)
    if cache.is_stamped(last.checkpoint.size):
        return None
    return checkpoint_round.order(
        session,
        last,
        kind=KIND,
        key="newest",
        part=PART,
        since=lambda: _since(session, last, cache),
    )


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
        if authority is None or last is None or self._cache(session, last).is_stamped(_size(last)):
            return Step(None, {})
        last_try = checkpoint_round.was_last(job)
        return Errand(
            lambda: ask(self.outbound, authority, last.note),
            lambda then, outcome: self._record(then, last, outcome, last_try=last_try),
        )

    def _record(
        self, session: Session, last: Published, outcome: Stamp | NotStamped, *, last_try: bool
    ) -> Step | Failed:
        if isinstance(outcome, NotStamped):
            if last_try or checkpoint_round.is_late(session, last):
                since = _since(session, last, self._cache(session, last))
                incidents.begin(session, PART, since, str(outcome))
            return Failed(str(outcome), for_good=last_try)
        # Another worker may have stored a stamp by now: that is kept.
        cursor(session).execute(_LOCK, _place(last))
        if not self._cache(session, last).is_stamped(_size(last)):
            _store(session, last, outcome)
        incidents.end(session, PART)
        return Step(None, {"size": _size(last), "at": outcome.time})

    def _cache(self, session: Session, last: Published) -> CheckpointCache:
        trusted = () if self.authority is None else self.authority.trusted
        return CheckpointCache(session, last.generation, trusted)


def _store(session: Session, last: Published, stamp: Stamp) -> None:
    """Store a stamp, in the place of one that does not hold."""
    place = _place(last)
    if cursor(session).execute(_DROP, place).rowcount:
        number, size = place
        say = partial(_log.warning, "timestamp_replaced", generation=number, size=size)
        after_commit(session, say)
    values = (*place, stamp.response, stamp.chain, stamp.gen_time)
    cursor(session).execute(_STORE, values)


def _since(session: Session, last: Published, cache: CheckpointCache) -> datetime:
    number = last.generation.number
    rows = cursor(session).execute(_NEWEST, (number, checkpoint_round.MOST_VERIFIED)).fetchall()
    return checkpoint_round.unvouched_since(
        session, number, [row[0] for row in rows], cache.is_stamped
    )


def _place(last: Published) -> tuple[int, int]:
    return last.generation.number, _size(last)


def _size(last: Published) -> int:
    return last.checkpoint.size
