"""Adoption: writes the database's newest checkpoint to an empty head store."""

from app.core.log import generations, publication
from app.core.log.head import head_guard
from app.core.log.sequencer import Sequencer
from app.errors import Conflict, LogHeadLost
from app.ledger.checkpoints import Checkpoint


def adopt(sequencer: Sequencer) -> Checkpoint:
    """Have the newest published checkpoint kept as the head; return it.

    Only where no head is: one that contradicts is never written over. Raises `Conflict` where there
    is one, no store, or no log, `LogDamaged` for a checkpoint that the tiles do not have.
    """
    if sequencer.head is None:
        raise Conflict("LOG_HEAD_URL is not set: there is nowhere to keep a head.")
    with sequencer.database.across_tenants() as session:
        last = publication.current(session)
        if last is None:
            raise Conflict(
                "The log has published nothing yet; its first checkpoint is kept by itself."
            )
        head_guard.check_stored(session, last)
    if not sequencer.head.swap(None, head_guard.text(last.checkpoint)):
        raise Conflict("A head is there already, and it is another: see `app.manage log status`.")
    with sequencer.database.across_tenants() as session:
        found = last.generation
        trouble = None if found.trouble == LogHeadLost.slug else found.trouble
        generations.mark(session, found.number, head_kept=True, trouble=trouble)
    return last.checkpoint
