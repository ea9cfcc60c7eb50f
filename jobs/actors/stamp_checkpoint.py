"""Each ten minutes: enqueue timestamping and cosigning of the log's newest checkpoint.

It runs a minute after `anchor_audit`, and checks that heads were anchored.
"""

from app.core.anchoring import checkpoint_round, cosigning, incidents, monitor, timestamping
from jobs.process.runtime import Runtime


def run(here: Runtime) -> None:
    """Enqueue timestamping and cosigning of the newest checkpoint, where still missing.

    With LOG_REQUIRE_QUORUM the sequencer watches the quorum instead.
    """
    policy = here.settings.witness_policy
    parts = [*monitor.PARTS, *map(cosigning.part, cosigning.asked(policy))]
    with here.database.across_tenants() as session:
        last, shown = checkpoint_round.chosen(session), checkpoint_round.shown(session)
        monitor.watch_heads(session)
        if not here.settings.log_require_quorum:
            monitor.watch_quorum(session, policy)
        if here.settings.tsa_url is not None:
            parts.append(timestamping.PART)
            if last is not None:
                timestamping.enqueue_due(session, last, here.settings.tsa_ca_file)
        if shown is not None:
            cosigning.enqueue_due(session, policy, shown)
        incidents.keep(session, parts)
