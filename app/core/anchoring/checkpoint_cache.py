"""A cache of one log's published checkpoints, with their timestamps and cosignatures.

It lasts for one transaction. A checkpoint counts only as the log signed it, a timestamp only if it
is over those bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.core.log import publication
from app.core.log.generations import Generation
from app.core.log.publication import Published
from app.database import cursor
from app.ledger.checkpoints import Checkpoint
from app.lib.crypto import timestamps
from app.lib.crypto.timestamps import NotStamped, Stamp

_READ = """
SELECT c.size, c.root, c.note, t.response, t.tsa_chain,
       ARRAY(SELECT line FROM checkpoint_cosignatures AS s
              WHERE s.generation = c.generation AND s.size = c.size
              ORDER BY created_at, name, key_hash)
  FROM checkpoints AS c
  LEFT JOIN checkpoint_timestamps AS t ON t.generation = c.generation AND t.size = c.size
 WHERE c.generation = %s AND c.size = ANY (%s) AND c.note IS NOT NULL
"""


@dataclass(frozen=True)
class CachedCheckpoint:
    """A checkpoint, its timestamp if there is one that holds, and the lines stored for it."""

    published: Published
    timestamp: Stamp | None
    lines: tuple[str, ...]


class CheckpointCache:
    """The checkpoints of one log; good for one transaction."""

    def __init__(
        self, session: Session, generation: Generation, trusted: Sequence[Certificate]
    ) -> None:
        """`trusted` are the roots of timestamp authorities; without any, a timestamp's own do.

        Those show only that it belongs to its checkpoint.
        """
        self._session = session
        self._generation = generation
        self._trusted = trusted
        self._held: dict[int, CachedCheckpoint | None] = {}

    def load(self, sizes: Iterable[int]) -> None:
        """Read the checkpoints of these sizes that were not read yet."""
        wanted = sorted(set(sizes) - self._held.keys())
        if not wanted:
            return
        self._held.update(dict.fromkeys(wanted))
        values = (self._generation.number, wanted)
        for size, root, note, response, chain, lines in cursor(self._session).execute(
            _READ, values, binary=True
        ):
            checkpoint = Checkpoint(self._generation.origin, size, bytes(root))
            published = Published(self._generation, checkpoint, bytes(note))
            if not publication.is_intact(published):
                continue
            stamp = None if response is None else self._stamp(bytes(response), chain, bytes(note))
            self._held[size] = CachedCheckpoint(published, stamp, tuple(lines))

    def get(self, size: int) -> CachedCheckpoint | None:
        """Return what is held of a size; None if no checkpoint of it was published, or holds."""
        self.load([size])
        return self._held[size]

    def is_stamped(self, size: int) -> bool:
        """Whether a checkpoint of this size was published, and has a timestamp that holds."""
        held = self.get(size)
        return held is not None and held.timestamp is not None

    def _stamp(self, response: bytes, chain: str, note: bytes) -> Stamp | None:
        try:
            own = timestamps.read_certificates(chain.encode())
            if self._trusted and any(
                each.subject == each.issuer and each not in self._trusted for each in own
            ):
                return None
            time = timestamps.verify(response, note, self._trusted or own)
        except (NotStamped, ValueError):
            return None
        return Stamp(response, chain, time)
