"""Each variant of a deployment: the main journey, a death of each process, and an orderly end."""

from tests.deploy import journey
from tests.deploy.figures import Figures, watched
from tests.deploy.servers import Servers
from tests.deploy.site import Site, Variant
from tests.e2e.traffic import Traffic
from tests.support.faults import until

VARIANTS = (
    Variant("alone", 1),
    Variant("apart", 2, two_roles=True, pooled=True),
)
_LOAD = 60


def deployed(servers: Servers, variant: Variant) -> Figures:
    """Deploy one variant on an empty database, and hold it to all checks; return its figures."""
    print(f"\n{variant}", flush=True)
    figures = Figures(str(variant))
    site = Site(servers, variant, variant.name)
    site.make_database()
    _say(site.release())
    try:
        figures.start = site.start()
        site.wait_for()
        _say(f"two of each process are ready, {figures.start:.1f} s after their start")
        with watched(site, figures):
            _used(site, figures)
        figures.stop = site.stop()
        _say(f"all end {figures.stop:.1f} s after SIGTERM, none of them killed")
    finally:
        site.stop()
    return figures


def _used(site: Site, figures: Figures) -> None:
    journey.an_event_arrives_signed(site)
    _say("a finding arrives as a signed event, and both web processes tell the same of it")
    journey.a_record_is_proven(site)
    _say("a record is in the log; its pack, fetched by a link, verifies as README says")
    journey.the_role_is_bound(site)
    _say("the service's role has no power, and sees no row without a tenant")
    with journey.tenant(site) as tenant:
        with tenant.traffic(1) as first, tenant.traffic(2) as second:
            for name in ("web-1", "worker-1", "scheduler-1"):
                _until_posted(_LOAD, first, second)
                site.kill(name)
                site.start(name)
            site.wait_for()
        closed = tenant.close_books(first, second)
    figures.findings = len(first.accepted) + len(second.accepted)
    _say(f"a leader of each is killed while findings are posted: {closed}")


def _until_posted(more: int, *traffic: Traffic) -> None:
    """Wait until so many more findings are accepted."""

    def accepted() -> int:
        return sum(len(each.accepted) for each in traffic)

    enough = accepted() + more
    until(lambda: accepted() >= enough)


def _say(sentence: str) -> None:
    print(f"  {sentence}", flush=True)
