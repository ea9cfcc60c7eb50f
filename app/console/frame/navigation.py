"""The pages that are reached from every page, and who may see each."""

from dataclasses import dataclass

from app.core.callers import Caller


@dataclass(frozen=True)
class Entry:
    """One page: its name for people and its endpoint; a pinned key sees no `whole_tenant` page."""

    name: str
    endpoint: str
    whole_tenant: bool = True


ENTRIES = (
    Entry("Overview", "console.overview.index"),
    Entry("Deliveries", "console.deliveries.index"),
    Entry("Replays", "console.replays.index"),
    Entry("Webhooks", "console.webhooks.index"),
    Entry("Records", "console.records.index", whole_tenant=False),
    Entry("Findings", "console.findings.index", whole_tenant=False),
    Entry("Audit", "console.audit.index"),
    Entry("Keys", "console.keys.index", whole_tenant=False),
    Entry("Jobs", "console.jobs.index"),
    Entry("Settings", "console.settings.index"),
)


def entries_for(caller: Caller) -> list[Entry]:
    """Return the pages that this caller may see, in their order."""
    return [entry for entry in ENTRIES if caller.pin is None or not entry.whole_tenant]
