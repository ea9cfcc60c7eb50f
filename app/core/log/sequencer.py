"""The sequencer: takes the log from waiting leaves to a published checkpoint, in three commits.

1. PostgreSQL: indexes, tiles and the prepared (size, root).
2. The head outside: compare-and-swap to the prepared tree.
3. PostgreSQL: the checkpoint is signed and published, or a candidate.

`run` first finishes what a crash left; docs/architecture.md has each case.
"""

import time

from app.core.log import candidates, generations, integration, publication
from app.core.log.head import head_guard
from app.core.log.head.head_store import HeadStore
from app.core.log.publication import Gate, Prepared, Published
from app.database import Database
from app.errors import LogDamaged, LogHalted
from app.lib.crypto.sealing import MasterKeys

_CHECK_SECONDS = 10.0


class Sequencer:
    """Keeps one database's log; as many may run at once as like to."""

    def __init__(
        self,
        database: Database,
        master_keys: MasterKeys,
        origin: str,
        head: HeadStore | None,
        gate: Gate | None = None,
    ) -> None:
        """`origin` names the log when it begins; from then on the database knows its name.

        Nothing is published that `gate` does not admit.
        """
        self.database = database
        self.head = head
        self._gate = gate
        self._master_keys = master_keys
        self._origin = origin
        self._check_at = 0.0

    def tick(self, until: float) -> bool:
        """Do what is due, at most until `until` (monotonic); return whether more waits.

        When nothing waits that is one statement, and now and then a check of the head. Raises
        `LogHalted`, at most every ten seconds while nothing changes.
        """
        seen = generations.load_state(self.database)
        due = time.monotonic() >= self._check_at
        if due:
            self._check_at = time.monotonic() + _CHECK_SECONDS
            self.check()
        elif seen.trouble is not None:
            return False
        return seen.waits and self.run(until)

    def run(self, until: float = float("inf"), most: int = integration.BATCH) -> bool:
        """Publish all that waits, a batch at a time; return whether the time ran out before.

        Ends where the gate admits nothing yet. Raises `LogHalted` when nothing may be signed, and
        notes it for `/readyz`.
        """
        try:
            while (work := self._prepare(most)) is not None:
                if not self._finish(work):
                    return False
                if time.monotonic() > until:
                    return True
        except LogHalted as error:
            self._note(error)
            raise
        return False

    def check(self) -> None:
        """Hold what was published last against its tiles and the head.

        A first head is kept, an old one moved on. Raises as `run` does.
        """
        try:
            last = self._held()
            if last is None or self.head is None:
                return
            if self.head.read() != head_guard.text(last.checkpoint):
                # What is held is what was signed, so no damaged row becomes the head.
                work = Prepared(last.generation, last.checkpoint, None)
                head_guard.advance(self.database, self.head, work)
        except LogHalted as error:
            self._note(error)
            raise
        generation = last.generation
        # Damage is known to be mended once a checkpoint has been made of the stored tree.
        damaged = generation.trouble == LogDamaged.slug
        if not generation.head_kept or (generation.trouble is not None and not damaged):
            trouble = generation.trouble if damaged else None
            with self.database.across_tenants() as session:
                generations.mark(session, generation.number, head_kept=True, trouble=trouble)

    def _held(self) -> Published | None:
        with self.database.across_tenants() as session:
            last = publication.current(session)
            if last is not None:
                head_guard.check_stored(session, last)
            return last

    def _prepare(self, most: int) -> Prepared | None:
        with self.database.across_tenants() as session:
            return integration.prepare(session, self._master_keys, self._origin, most)

    def _finish(self, work: Prepared) -> bool:
        """Publish what was prepared, or have others do so; False while the gate holds it back."""
        if self._gate is not None and self._is_held_back(self._gate, work):
            return False
        if self.head is not None and not head_guard.advance(self.database, self.head, work):
            return True
        with self.database.across_tenants() as session:
            return publication.publish(
                session, self._master_keys, work, head_kept=self.head is not None, gate=self._gate
            )

    def _is_held_back(self, gate: Gate, work: Prepared) -> bool:
        """Ask the gate of a candidate before the head store is: it may say no for hours."""
        with self.database.across_tenants() as session:
            candidate = candidates.of(session, work.generation)
            if candidate is None or candidate.checkpoint != work.checkpoint:
                return False
            return not gate.admits(session, candidate)

    def _note(self, error: LogHalted) -> None:
        with self.database.across_tenants() as session:
            generation = generations.newest(session)
            if generation is not None:
                generations.mark(session, generation.number, head_kept=False, trouble=error.slug)
