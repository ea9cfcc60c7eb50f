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
from datetime import timedelta
from functools import partial
from multiprocessing.context import ForkServerProcess

import pytest
from sqlalchemy import Engine

from app.core.digests import schedule
from app.lib.mail.mailer import DATA_SECONDS
from app.settings import Settings
from tests.jobs.digest_process import live
from tests.jobs.digesting import Desk, Tenant, desk_at, listed
from tests.support.database.databases import made_database
from tests.support.faults import until
from tests.support.servers.mail import Mail, Mood, serving

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]

# More for a longer search: DIGEST_TENANTS=1000.
TENANTS = int(os.environ.get("DIGEST_TENANTS", "100"))
# In a storm a process is killed each time so many mails more have arrived.
KILLS = 10 + TENANTS // 20
MAILS_A_KILL = TENANTS / 4 / KILLS
STORMS = 2
# Findings of a mail in doubt are listed again a day later: after the storms, and once more for
# processes that died while sending in the last of them.
MOST_CALM_DAYS = 5
# How long a worker waits for an answer: a server that is slow has it give up, on calm days none is.
STORM_SECONDS, CALM_SECONDS = 3.0, DATA_SECONDS
# Guards, no measures.
SECONDS_A_DAY = 300.0 + TENANTS
A_MINUTE_LATER = """
UPDATE jobs SET run_at = run_at - interval '1 minute',
       locked_until = locked_until - interval '1 minute'
 WHERE finished_at IS NULL
"""
CAST = ("worker",) * 4 + ("clock",) * 2
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.jobs.digest_process"])


class Crowd:
    """The processes, each replaced by another when it is killed."""

    def __init__(self, environ: dict[str, str], smtp_port: int, data_seconds: float) -> None:
        self._arguments = (environ, smtp_port)
        self._data_seconds = data_seconds
        self._processes = [self._started(role) for role in CAST]
        self.killed = 0

    def kill_one(self) -> None:
        self.check()
        place = random.randrange(len(CAST))
        self._processes[place].kill()
        self._processes[place].join()
        self._processes[place] = self._started(CAST[place])
        self.killed += 1

    def check(self) -> None:
        """Assert that no process has ended by itself."""
        assert [process.exitcode for process in self._processes] == [None] * len(CAST)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def _started(self, role: str) -> ForkServerProcess:
        arguments = (*self._arguments, role, self._data_seconds)
        process = _FORK.Process(target=live, args=arguments, daemon=True)
        process.start()
        return process


@contextmanager
def crowd(environ: dict[str, str], desk: Desk, data_seconds: float) -> Iterator[Crowd]:
    own = {
        **environ,
        "DATABASE_URL": desk.settings.database_url,
        "DATABASE_ADMIN_URL": desk.settings.database_admin_url,
        "DATABASE_CONNECTIONS": "16",
        "LOG_LEVEL": "CRITICAL",
    }
    gathered = Crowd(own, desk.postbox.port, data_seconds)
    try:
        yield gathered
        gathered.check()
    finally:
        gathered.end()


@pytest.fixture
def desk(postgres: object, settings: Settings, admin_engine: Engine) -> Iterator[Desk]:
    with (
        made_database(settings, admin_engine) as own,
        serving() as postbox,
        desk_at(replace(own, digest_settle=timedelta(seconds=900)), postbox) as desk,
    ):
        yield desk


@pytest.mark.timeout((STORMS + MOST_CALM_DAYS) * SECONDS_A_DAY + 60)
def test_killed_processes_cause_no_second_mail_a_day_and_lose_no_finding(
    desk: Desk, environ: dict[str, str]
) -> None:
    tenants = made(desk)
    found: dict[str, set[str]] = {address(tenant): set() for tenant in tenants}
    days: list[list[Mail]] = []

    def begin(whose: list[Tenant]) -> int:
        """Add findings to these tenants, and let a day go by: leases of killed processes end."""
        for tenant in whose:
            found[address(tenant)] |= tenant.find(random.randint(1, 3))
        desk.wait(24.5)
        return len(desk.postbox.mails)

    for storm in range(STORMS):
        before = begin(tenants if storm == 0 else random.sample(tenants, TENANTS // 2))
        desk.postbox.mood = any_mood
        with crowd(environ, desk, STORM_SECONDS) as gathered:
            # Without backoff: a kill must meet a process at work.
            until(partial(storm_is_over, desk, gathered, before), SECONDS_A_DAY, pause=0.005)
        days.append(desk.postbox.mails[before:])
    desk.postbox.taken(Mood.TAKE)
    for calm in range(MOST_CALM_DAYS):
        before = begin(random.sample(tenants, TENANTS // 2) if calm == 0 else [])
        if nothing_due(desk):
            break
        with crowd(environ, desk, CALM_SECONDS) as gathered:
            until(lambda: nothing_open(desk) and nothing_due(desk), SECONDS_A_DAY)
        days.append(desk.postbox.mails[before:])

    for day in days:
        twice = {who: n for who, n in Counter(mail.recipient for mail in day).items() if n > 1}
        assert twice == {}
    told: dict[str, set[str]] = {who: set() for who in found}
    for mail in desk.postbox.mails:
        told[mail.recipient] |= listed(mail)
    assert told == found, "each finding in a mail of its own tenant"


def address(tenant: Tenant) -> str:
    return f"{tenant.id.hex}@example.com"


def made(desk: Desk) -> list[Tenant]:
    def one(_: int) -> Tenant:
        tenant = Tenant(desk)
        tenant.set_address(address(tenant))
        return tenant

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(TENANTS)))


def any_mood() -> Mood:
    """Half of the mails are taken as they should be, and few too slowly for any worker."""
    if random.random() < 0.02:
        return Mood.SLOW
    return random.choice(
        [Mood.TAKE, random.choice([mood for mood in Mood if mood is not Mood.SLOW])]
    )


def storm_is_over(desk: Desk, gathered: Crowd, before: int) -> bool:
    """Kill a process as soon as some mails more have arrived, until that has been often enough.

    Then leases and waits end: of those who were killed, and of those who are at it.
    """
    if len(desk.postbox.mails) - before > gathered.killed * MAILS_A_KILL:
        gathered.kill_one()
        desk.run(A_MINUTE_LATER)
    return gathered.killed >= KILLS


def nothing_open(desk: Desk) -> bool:
    """Say whether no digest is under way."""
    open_ones = "SELECT FROM digests WHERE status IN ('pending', 'sending') LIMIT 1"
    with desk.owner.connect() as connection:
        return connection.exec_driver_sql(open_ones).rowcount == 0


def nothing_due(desk: Desk) -> bool:
    """Say whether no tenant is due a digest, nor will be by what there is."""
    with desk.runtime.database.across_tenants() as session:
        return not schedule.due_tenants(session, desk.settings.digest_settle)
