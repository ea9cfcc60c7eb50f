"""Banners on every page while something is wrong: the audit chain, the log, the workers."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.api.http.services import services


@dataclass(frozen=True)
class Notice:
    """A banner's sentence; `grave` if stored data is inconsistent."""

    text: str
    grave: bool = False


_BROKEN = Notice(
    "The audit chain is broken: an entry is not what was written. Keep the database as it is and "
    "investigate.",
    grave=True,
)
_LOG = "The audit chain cannot be verified against the transparency log now: {}."
_LATE = "The audit chain was not verified lately. It was {}."
_UNKNOWN = "Whether the audit chain holds is not known now ({})."
# The prefixes of the two sentences in `/readyz`.
_OF_LOG, _OF_TIME = "not verified: ", "not verified as a whole "
AWAY = {
    "worker": "No worker runs: what is accepted waits to be sent.",
    "scheduler": "No scheduler runs: retries and jobs wait longer.",
    "redis": "Redis is away: deliveries start some seconds late.",
}


def of(open_breaks: int) -> list[Notice]:
    """Return the banners for `open_breaks` of the tenant's chain, and for the service's parts."""
    here = services()
    parts = here.readiness.parts()
    found = [_BROKEN] if open_breaks else []
    found += map(Notice, _unverified(parts["log"], parts["audit"]))
    presence = here.bell.presence()
    if presence is None:
        return [*found, Notice(AWAY["redis"])]
    return [*found, *(Notice(AWAY[str(role)]) for role, up in presence.items() if not up)]


def _unverified(log: str, audit: str) -> Iterator[str]:
    """Yield why the chain is not known to be intact, from two parts of `/readyz`."""
    if audit.startswith("unknown"):
        yield _UNKNOWN.format(audit.removeprefix("unknown: "))
        return
    reasons = audit.split("; ")
    of_log = [each.removeprefix(_OF_LOG) for each in reasons if each.startswith(_OF_LOG)]
    if of_log or log != "up":
        yield _LOG.format("".join(of_log[:1]).rstrip(".") or log)
    for each in reasons:
        if each.startswith(_OF_TIME):
            yield _LATE.format(each)
