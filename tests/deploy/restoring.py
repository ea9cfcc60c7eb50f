"""A dump made under load, restored into another database after the first one is gone.

What the dump has as delivered must not be sent again; what waited in it must arrive; and nothing of
it may be lost. Findings from after the dump are gone, as docs/operations.md says.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from app import ids
from tests.deploy import journey
from tests.deploy.command import heading, say
from tests.deploy.servers import Servers
from tests.deploy.site import ASK_AGAIN_SECONDS, Site, Variant
from tests.e2e.harness.books import Tenant
from tests.e2e.harness.stack import Hook
from tests.e2e.harness.traffic import Neighbour
from tests.support.faults import until
from tests.support.programs.documents import block

VARIANT = Variant("dumped", 4, two_roles=True)
_ONE_OF_EACH = ("web-1", "worker-1", "scheduler-1")
_POSTED = 100
_MANUAL = "docs/operations.md"
_DELIVERIES = "SELECT webhook_id, event_id, status FROM deliveries"


def restored(servers: Servers) -> None:
    """Dump a deployment under load, lose it, restore it elsewhere, and let it go on."""
    heading(f"a dump under load, restored ({VARIANT})")
    lost = Site(servers, VARIANT, VARIANT.name)
    lost.make_database()
    lost.release()
    kept = {name: lost.settings[name] for name in lost.settings if name[:9] != "DATABASE_"}
    found = Site(servers, VARIANT, "restored", kept)
    try:
        lost.start(*_ONE_OF_EACH)
        lost.wait_for()
        with journey.tenant(lost) as tenant:
            head = tenant.caller.get("/v1/audit/verify")["head"]
            _dumped(lost, tenant)
            found.make_database()
            found.run(block(_MANUAL, "sh", "pg_restore"), cwd=lost.folder)
            say(f"restored into another database: {found.release()}")
            _gone_on(found, journey.moved(tenant, found, 1), head)
    finally:
        found.stop()
        lost.stop()


def _dumped(site: Site, tenant: Tenant) -> None:
    """Dump while findings are posted and one receiver is away; go on, then kill everything."""
    _, leisurely = tenant.lanes[1]
    with tenant.traffic(site.base_urls[0]) as traffic:
        traffic.wait_for(_POSTED)
        with leisurely.resetting():
            traffic.wait_for(_POSTED)
            site.run(block(_MANUAL, "sh", "pg_dump"), cwd=site.folder)
        traffic.wait_for(_POSTED)
        # The head outside is ahead of the dump from here on.
        journey.record_in_the_log(tenant.caller, tenant.session_id)
        traffic.end()
        size = (site.folder / "records.dump").stat().st_size
        say(f"{len(traffic.accepted)} findings are posted; the dump between has {size} bytes")
    tenant.close_books(traffic.accepted)
    for name in _ONE_OF_EACH:
        site.kill(name)


@dataclass(frozen=True)
class _Dump:
    """What a dump knows of one webhook: events by how their delivery stood."""

    succeeded: set[str]
    waiting: set[str]


def _gone_on(site: Site, tenant: Tenant, head: Mapping[str, Any]) -> None:
    """Let the restored deployment go on, and hold what arrives from now on against the dump."""
    dumps = _read(site)
    before = {neighbour.name: dict(neighbour.taken) for _, neighbour in tenant.lanes}
    site.start(*_ONE_OF_EACH)
    # The log is halted behind its head: a successor begins as docs/operations.md says. Each web
    # process keeps a state of its own for seconds: one may still call the log up.
    said = "log-rolled-back"
    until(lambda: site.parts()["log"] == said, pause=ASK_AGAIN_SECONDS)
    site.run("python -m app.manage log succeed --yes")
    until(lambda: site.parts()["log"] == "up", pause=ASK_AGAIN_SECONDS)
    say(f"the log is behind its head outside ({said}) and signs nothing until `log succeed`")
    audit = tenant.caller.get("/v1/audit/verify", seq=head["seq"], hash=head["hash"])
    assert audit["status"] == "intact", audit
    site.wait_for()
    say("the chain has the head kept before the dump; /readyz says that nothing is degraded")
    for hook, neighbour in tenant.lanes:
        dump = dumps[hook.id]
        _require_resumed(hook, neighbour, dump, before[neighbour.name])
    sent = sum(len(dump.waiting) for dump in dumps.values())
    kept = sum(len(dump.succeeded) for dump in dumps.values())
    assert min(sent, kept) > 0, f"{sent} deliveries waited in the dump, {kept} had succeeded"
    say(f"{sent} deliveries that waited in the dump arrive; none of {kept} that had succeeded does")
    with tenant.traffic(site.base_urls[0]) as traffic:
        traffic.wait_for(_POSTED)
    fresh = set(traffic.accepted)
    until(lambda: all(fresh <= neighbour.findings.keys() for _, neighbour in tenant.lanes))
    journey.record_in_the_log(tenant.caller, tenant.session_id)
    say("new findings arrive, and a new record is proven by the new log")


def _read(site: Site) -> Mapping[str, _Dump]:
    """Return what the restored database knows of each webhook, before a process touches it."""
    found: dict[str, _Dump] = {}
    with closing(psycopg.connect(site.servers.admin_url(site.database))) as connection:
        for webhook_id, event_id, status in connection.execute(_DELIVERIES):
            dump = found.setdefault(ids.text("whk", webhook_id), _Dump(set(), set()))
            (dump.succeeded if status == "succeeded" else dump.waiting).add(
                ids.text("evt", event_id)
            )
    return found


def _require_resumed(
    hook: Hook, neighbour: Neighbour, dump: _Dump, before: Mapping[str, int]
) -> None:
    """Fail unless what waited arrives, all of it is in the books, and nothing else came again."""
    # One more than in the dump: `history.rolled_back`, which says where readers go on.
    accepted = len(dump.succeeded) + len(dump.waiting) + 1
    until(lambda: hook.settled()["accepted"] == accepted)
    books = hook.settled()
    assert books["balanced"], books
    assert books["counted"], books
    assert (books["accepted"], books["succeeded"]) == (accepted, accepted), books
    again = {event for event, count in neighbour.taken.items() if count > before.get(event, 0)}
    assert not again & dump.succeeded, f"{neighbour.name} got {len(again & dump.succeeded)} again"
    assert dump.waiting <= again, f"{neighbour.name} did not get {len(dump.waiting - again)}"
