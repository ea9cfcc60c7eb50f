"""Each variant of a deployment: the main journey, a death of each process, and an orderly end."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg

from tests.deploy import journey
from tests.deploy.command import heading, say
from tests.deploy.servers import Servers
from tests.deploy.site import Site, Variant

VARIANTS = (
    Variant("alone", 1),
    Variant("apart", 2, two_roles=True, pooled=True, server="gunicorn"),
)
_LOAD = 30
# The sum of docs/setup.md: two instances at the default, and two for a command.
_CONNECTIONS = 2 * 40 + 2
_OPEN = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = %s AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def deployed(servers: Servers) -> None:
    """Deploy each variant on an empty database, and hold it to all checks."""
    for variant in VARIANTS:
        _deployed(servers, variant)


def _deployed(servers: Servers, variant: Variant) -> None:
    heading(str(variant))
    site = Site(servers, variant, variant.name)
    site.make_database()
    say(site.release())
    try:
        took = site.start()
        site.wait_for()
        say(f"two of each process are ready, {took:.1f} s after their start")
        with _connections(site) as seen:
            _used(site)
        assert max(seen) <= _CONNECTIONS, seen
        say(f"PostgreSQL had {max(seen)} connections at most, of {_CONNECTIONS} to expect")
        say(f"all end {site.stop():.1f} s after SIGTERM, none of them killed")
    finally:
        site.stop()


@contextmanager
def _connections(site: Site) -> Iterator[list[int]]:
    """Count PostgreSQL's connections every two seconds, for the length of the `with`."""
    over, seen = threading.Event(), [0]

    def watch() -> None:
        admin_url = site.servers.admin_url("postgres")
        with closing(psycopg.connect(admin_url, autocommit=True)) as connection:
            while not over.wait(2.0):
                (row,) = connection.execute(_OPEN, (site.database,)).fetchall()
                seen.append(row[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def _used(site: Site) -> None:
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
        closed = tenant.close_books(first.accepted + second.accepted)
    say(f"a leader of each is killed while findings are posted: {closed}")
