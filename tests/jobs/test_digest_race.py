"""Many workers and clocks at the same digests, killed at random, with a mail server in any mood.

Day after day: on no day does a tenant get two mails, and after a calm day each finding was in one.
"""

import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.context import ForkServerProcess

import pytest
from sqlalchemy import Engine

from app.core.digest import claims
from app.settings import Settings
from tests.conftest import made_database
from tests.faults import until
from tests.jobs.digest_process import live
from tests.jobs.digesting import Desk, Tenant, desk_at, listed
from tests.mail import Mail, Mood, serving

pytestmark = [pytest.mark.stacks, pytest.mark.slow]

# DIGEST_TENANTS=1000 for a long run; a mail costs both cores some 30 ms.
TENANTS = int(os.environ.get("DIGEST_TENANTS", "25"))
KILLS = 5 + TENANTS // 20
# Guards, no measures.
SECONDS_A_DAY = 60.0 + TENANTS / 3
CAST = ("worker",) * 4 + ("clock",) * 2
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.jobs.digest_process"])


class Crowd:
    """The processes, each replaced by another when it is killed."""

    def __init__(self, environ: dict[str, str], smtp_port: int) -> None:
        self._arguments = (environ, smtp_port)
        self._processes = [self._started(role) for role in CAST]
        self.killed = 0

    def kill_one(self) -> None:
        place = random.randrange(len(CAST))
        self._processes[place].kill()
        self._processes[place].join()
        self._processes[place] = self._started(CAST[place])
        self.killed += 1

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def _started(self, role: str) -> ForkServerProcess:
        process = _FORK.Process(target=live, args=(*self._arguments, role), daemon=True)
        process.start()
        return process


@contextmanager
def crowd(environ: dict[str, str], settings: Settings, smtp_port: int) -> Iterator[Crowd]:
    own = {
        **environ,
        "DATABASE_URL": settings.database_url,
        "DATABASE_ADMIN_URL": settings.database_admin_url,
        "DATABASE_POOL_SIZE": "4",
        "LOG_LEVEL": "CRITICAL",
    }
    gathered = Crowd(own, smtp_port)
    try:
        yield gathered
    finally:
        gathered.end()


@pytest.fixture
def desk(postgres: object, settings: Settings, admin_engine: Engine) -> Iterator[Desk]:
    with (
        made_database(settings, admin_engine) as own,
        serving() as postbox,
        desk_at(replace(own, digest_settle_seconds=900.0), postbox) as desk,
    ):
        yield desk


def any_mood() -> Mood:
    well = random.random() < 0.5
    return Mood.TAKE if well else random.choice([mood for mood in Mood if mood is not Mood.SLOW])


@pytest.mark.timeout(4 * SECONDS_A_DAY + 60)
def test_never_two_mails_a_day_and_no_finding_in_none_whoever_dies(
    desk: Desk, environ: dict[str, str]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        tenants = list(pool.map(lambda _: Tenant(desk), range(TENANTS)))
    found: set[str] = set()
    for tenant in tenants:
        tenant.set_address(f"{tenant.id.hex}@example.com")
    days: list[list[Mail]] = []
    killed = 0
    for storm in (True, True, False, False):
        for tenant in random.sample(tenants, TENANTS // 2) if days else tenants:
            found |= tenant.find(random.randint(1, 3))
        # Those who were killed are gone, and their leases with the day.
        desk.wait(24.5)
        before = len(desk.postbox.mails)
        desk.postbox.mood = any_mood if storm else lambda: Mood.TAKE
        with crowd(environ, desk.settings, desk.postbox.port) as gathered:
            if storm:
                until(partial(storm_is_over, desk, gathered, before), SECONDS_A_DAY)
            else:
                until(lambda: nothing_open(desk), SECONDS_A_DAY)
            killed += gathered.killed
        days.append(desk.postbox.mails[before:])

    for day in days:
        twice = {who: n for who, n in Counter(mail.recipient for mail in day).items() if n > 1}
        assert twice == {}
    assert killed >= 2 * KILLS
    assert found <= listed(*desk.postbox.mails), "a finding that no mail lists"
    whose = {mail.recipient: set[str]() for mail in desk.postbox.mails}
    assert len(whose) == TENANTS


def storm_is_over(desk: Desk, gathered: Crowd, before: int) -> bool:
    """Kill somebody, as soon as some mail more has arrived, until that has been often enough."""
    mails = len(desk.postbox.mails) - before
    if mails * KILLS > gathered.killed * TENANTS / 4:
        gathered.kill_one()
    return gathered.killed >= KILLS


def nothing_open(desk: Desk) -> bool:
    """Say whether nobody is due and nothing is under way."""
    with desk.runtime.database.across_tenants() as session:
        if claims.due_tenants(session, desk.settings.digest_settle):
            return False
    open_ones = "SELECT count(*) FROM digests WHERE status IN ('pending', 'sending')"
    with desk.owner.connect() as connection:
        return not connection.exec_driver_sql(open_ones).scalar()
