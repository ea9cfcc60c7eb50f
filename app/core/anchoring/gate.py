"""The gate before publication (LOG_REQUIRE_QUORUM): admits what a quorum has cosigned.

A witness cosigns one history only, so no reader can be shown a fork. It fails closed: without a
quorum nothing is published, leaves wait, and after a grace time an incident opens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from app.core.anchoring import cosigning, incidents, quorum
from app.core.anchoring.monitor import QUORUM
from app.core.log import publication
from app.core.log.publication import Published
from app.database import database_now
from app.ledger.policy import Policy
from app.settings import Settings


@dataclass(frozen=True)
class QuorumGate:
    """Admits what the policy's quorum has cosigned; `grace` is how long it may take to."""

    policy: Policy
    grace: timedelta

    def admits(self, session: Session, candidate: Published) -> bool:
        """Say whether a candidate may be published; if not, have its witnesses asked.

        The empty tree needs no quorum: there is only one.
        """
        if candidate.checkpoint.size == 0:
            return True
        if quorum.is_met(self.policy, candidate.note, cosigning.lines(session, candidate)):
            incidents.end(session, QUORUM)
            return True
        self._watch(session, candidate, cosigning.enqueue_now(session, self.policy, candidate))
        return False

    def _watch(self, session: Session, candidate: Published, missing: Sequence[str]) -> None:
        """Note that the quorum is away for longer than the grace time."""
        since = publication.signed_at(session, candidate)
        if since is None or database_now(session) - since < self.grace:
            return
        incidents.begin(
            session,
            QUORUM,
            since,
            f"Nothing is published before the quorum of WITNESS_POLICY has cosigned size"
            f" {candidate.checkpoint.size}. Not cosigned by {'; '.join(missing)}",
        )


def opened(settings: Settings) -> QuorumGate | None:
    """Return the gate that the settings ask for; without one every checkpoint is published."""
    if settings.witness_policy is None or not settings.log_require_quorum:
        return None
    return QuorumGate(settings.witness_policy, timedelta(seconds=settings.log_quorum_grace_seconds))
