"""A log that publishes a checkpoint once two witnesses have cosigned it."""

from contextlib import ExitStack
from typing import Any

from sqlalchemy import text

from app.core.anchoring import quorum
from app.core.anchoring.monitor import QuorumGate
from app.core.log import publication
from app.core.log.sequencer import Sequencer
from tests.support.evidence.anchoring import Place, Witnessed
from tests.support.evidence.logs import add_leaves
from tests.support.servers.receivers import http_answer

AWAY = http_answer(503)


class Gated(Witnessed):
    """Two witnesses, both of them the quorum, in front of what is published from size 3 on."""

    def __init__(self, place: Place, servers: ExitStack) -> None:
        super().__init__(place, servers)
        place.set(log_require_quorum=True)

    def sequencer(self, **changed: Any) -> Sequencer:
        """Return a sequencer as a fresh process has it."""
        settings = self.place.runtime.settings
        assert settings.witness_policy is not None
        grace = settings.log_quorum_grace
        gate = QuorumGate(settings.witness_policy, grace)
        return self.place.world.sequencer(**({"gate": gate} | changed))

    def sign(self, leaves: int = 1) -> None:
        """Have leaves wait, and the next checkpoint signed."""
        add_leaves(self.place.database, leaves)
        self.sequencer().run()

    def settle(self) -> int:
        """Do what workers do within seconds; return the published size."""
        for _ in range(3):
            self.sequencer().run()
            self.place.retry()
        self.sequencer().run()
        return self.published()

    def later(self, seconds: int = 16) -> None:
        """Let so much time pass."""
        past = f"interval '{seconds} s'"
        self.place.run(f"UPDATE checkpoints SET signed_at = signed_at - {past}")
        self.place.run(
            "UPDATE jobs SET args = jsonb_set(args::jsonb, '{asked_at}', to_jsonb("
            f"((args::jsonb ->> 'asked_at')::timestamptz - {past})::text))::text"
        )

    def published(self) -> int:
        """Return the published size; hold all that is published to its quorum."""
        policy = self.place.runtime.settings.witness_policy
        assert policy is not None
        query = """
            SELECT size, note, ARRAY(SELECT line FROM checkpoint_cosignatures AS s
                                      WHERE s.generation = c.generation AND s.size = c.size)
              FROM checkpoints AS c WHERE size > 3 AND note IS NOT NULL"""
        with self.place.owner.connect() as connection:
            for size, note, lines in connection.execute(text(query)):
                assert quorum.is_met(policy, bytes(note), lines), size
        return self.place.world.published().checkpoint.size

    def candidate(self) -> int | None:
        with self.place.database.across_tenants() as session:
            found = publication.current_candidate(session)
            return None if found is None else found.checkpoint.size
