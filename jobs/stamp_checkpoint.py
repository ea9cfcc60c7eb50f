"""The tick that has the log's newest checkpoint stamped and cosigned, by durable jobs."""

from app.core.anchoring import cosigning, stamping, troubles, watching
from jobs.runtime import Runtime, runtime


def stamp_checkpoint() -> None:
    """Look which of the authority and the witnesses have not seen the newest checkpoint."""
    look(runtime())


def look(here: Runtime) -> None:
    """Do the same with what a process holds."""
    policy = here.settings.witness_policy
    parts = [*watching.PARTS, *map(cosigning.part, cosigning.asked(policy))]
    with here.database.across_tenants() as session:
        if here.settings.tsa_url is not None:
            parts.append(stamping.PART)
            stamping.look(session)
        cosigning.look(session, policy)
        troubles.keep(session, parts)
