"""Each variant of a deployment: the main journey, a death of each process, and an orderly end."""

from tests.deploy import journey
from tests.deploy.figures import Figures, watched
from tests.deploy.servers import Servers
from tests.deploy.site import Site, Variant
from tests.deploy.telling import heading, say

VARIANTS = (
    Variant("alone", 1),
    Variant("apart", 2, two_roles=True, pooled=True, server="gunicorn"),
)
_LOAD = 30
# The sum of docs/setup.md: two instances at the default, and two for a command.
_CONNECTIONS = 2 * 40 + 2


def deployed(servers: Servers, variant: Variant) -> Figures:
    """Deploy one variant on an empty database, and hold it to all checks; return its figures."""
    heading(str(variant))
    figures = Figures(str(variant))
    site = Site(servers, variant, variant.name)
    site.make_database()
    say(site.release())
    try:
        figures.start = site.start()
        site.wait_for()
        say(f"two of each process are ready, {figures.start:.1f} s after their start")
        with watched(site, figures):
            _used(site, figures)
        assert figures.connections <= _CONNECTIONS, figures
        say(
            f"PostgreSQL had {figures.connections} connections at most, of {_CONNECTIONS} to expect"
        )
        figures.stop = site.stop()
        say(f"all end {figures.stop:.1f} s after SIGTERM, none of them killed")
    finally:
        site.stop()
    return figures


def _used(site: Site, figures: Figures) -> None:
    journey.an_event_arrives_signed(site)
    say("a finding arrives as a signed event, and both web processes tell the same of it")
    journey.a_record_is_proven(site)
    say("a record is in the log; its pack, fetched by a link, verifies as README says")
    journey.the_role_is_bound(site)
    say("the service's role has no power, and sees no row without a tenant")
    site.run("python -m app.manage doctor")
    say("`doctor` finds nothing that fails")
    one, other = site.base_urls
    with journey.tenant(site) as tenant:
        with tenant.traffic(one) as first, tenant.traffic(other) as second:
            for name in ("web-1", "worker-1", "scheduler-1"):
                first.wait_for(_LOAD)
                second.wait_for(_LOAD)
                site.kill(name)
                site.start(name)
            site.wait_for()
        closed = tenant.close_books(first, second)
    figures.findings = len(first.accepted) + len(second.accepted)
    say(f"a leader of each is killed while findings are posted: {closed}")
