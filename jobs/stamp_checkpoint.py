"""The tick that has the log's newest checkpoint stamped and cosigned, by durable jobs.

It comes a minute after the one that has heads anchored, and looks whether they were.
"""

from app.core.anchoring import cosigning, stamping, tick, troubles, watching
from jobs.runtime import Runtime, runtime


def stamp_checkpoint() -> None:
    """Choose the newest checkpoint, and look which of authority and witnesses have not seen it."""
    look(runtime())


def look(here: Runtime) -> None:
    """Do the same with what a process holds."""
    policy = here.settings.witness_policy
    parts = [*watching.PARTS, *map(cosigning.part, cosigning.asked(policy))]
    with here.database.across_tenants() as session:
        last = tick.chosen(session)
        watching.watch_heads(session)
        watching.watch_quorum(session, policy)
        if here.settings.tsa_url is not None:
            parts.append(stamping.PART)
        if last is not None:
            if here.settings.tsa_url is not None:
                stamping.look(session, last, here.settings.tsa_ca_file)
            cosigning.look(session, policy, last)
        troubles.keep(session, parts)
