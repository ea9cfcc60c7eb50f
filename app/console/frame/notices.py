"""What every page says on top while something is wrong: the audit chain, the log, the workers."""

from dataclasses import dataclass

from app.api.http.services import services


@dataclass(frozen=True)
class Notice:
    """One sentence; `grave` where what is stored contradicts itself."""

    text: str
    grave: bool = False


_BROKEN = Notice(
    "The audit chain is broken: an entry is not what was written. Keep the database as it is and "
    "investigate.",
    grave=True,
)
_LOG = "The audit chain cannot be verified against the transparency log now: {}."
_LATE = "The audit chain was not verified lately: {}."
_AWAY = {
    "worker": "No worker runs: what is accepted waits to be sent.",
    "scheduler": "No scheduler runs: retries and jobs wait longer.",
    "redis": "Redis is away: deliveries start some seconds late.",
}


def of(open_breaks: int) -> list[Notice]:
    """Return what is wrong: with so many breaks of the tenant's chain, and the service's parts."""
    here = services()
    parts = here.readiness.parts()
    found = [_BROKEN] if open_breaks else []
    if parts["log"] != "up":
        found.append(Notice(_LOG.format(parts["log"])))
    late = [said for said in parts["audit"].split("; ") if said.startswith(("not ver", "unknown"))]
    found += [Notice(_LATE.format(said)) for said in late]
    presence = here.bell.presence()
    if presence is None:
        return [*found, Notice(_AWAY["redis"])]
    return [*found, *(Notice(_AWAY[str(role)]) for role, up in presence.items() if not up)]
