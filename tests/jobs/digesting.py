"""Digests as clock and worker make them, against a real mail server, with time that is ours.

A service of its own on a database of its own. Time passes by setting every durable moment back: no
other column holds a copy of one, so that is as good as waiting.
"""

import dataclasses
import quopri
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, create_engine, text

from app import ids
from app.core import agents, findings, sessions, tenant_settings, tenants
from app.core.callers import Caller, Role
from app.core.findings import NewFinding
from app.lib.mail.mailer import DATA_SECONDS, GoAhead, Mailer, MailServer, Tls, Write
from app.lib.mail.smtp import Smtp
from app.settings import Settings
from jobs.actors import ticks
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.secrets import MASTER_KEYS
from tests.support.servers.mail import Mail, Postbox

ADDRESS = "dana@example.com"
_FINDING = re.compile(r"/console/findings/(fnd_[0-9a-f]{32})\b")


class Killed(BaseException):
    """Stands for the end of a process: it is not caught, and nothing is cleaned up."""


class Mortal:
    """A mailer whose process dies on the way: `before` the go-ahead, `between`, or `after` all."""

    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer
        self.dies: str | None = None

    def deliver(self, write: Write, go_ahead: GoAhead) -> None:
        dies, self.dies = self.dies, None
        if dies == "before":
            raise Killed

        def asked() -> bool:
            answer = go_ahead()
            if dies == "between":
                raise Killed
            return answer

        self.mailer.deliver(write, asked)
        if dies == "after":
            raise Killed


class Tenant:
    """A tenant that gets digests."""

    def __init__(self, desk: "Desk", name: str = "Acme") -> None:
        self._desk = desk
        self._database = desk.runtime.database
        self.id, self.root_key = tenants.create(self._database, MASTER_KEYS, name)
        self.caller = Caller(self.id, ids.new(), Role.ADMIN, None, "test")
        with self._database.transaction(self.id) as session:
            agent = agents.create(session, self.caller, name="an agent")
            self.session_id = sessions.create(
                session, self.caller, agent_id=agent.id, principal="bob", title=None
            ).id

    def set_address(self, address: str | None = ADDRESS) -> None:
        wanted = {"notification_email": address}
        with self._database.transaction(self.id) as session:
            tenant_settings.change(session, self.caller, wanted)

    def find(self, count: int = 1, **fields: Any) -> set[str]:
        """Add findings; return their ids."""
        new = {"rule": "pii.in-log", "severity": "high", "title": "An address in a log"} | fields
        each = NewFinding(self.session_id, **new)
        with self._database.transaction(self.id) as session:
            return {row["id"] for row in findings.add(session, self.caller, [each] * count)}

    def find_settled(self, count: int = 1) -> set[str]:
        """Add findings and let an hour pass; return their ids."""
        found = self.find(count)
        self._desk.wait(1)
        return found

    def digests(self) -> list[dict[str, Any]]:
        """Return its digests' rows, oldest first."""
        query = text("SELECT * FROM digests ORDER BY id")
        with self._database.transaction(self.id) as session:
            return [dict(row) for row in session.execute(query).mappings()]

    def statuses(self) -> list[str]:
        return [row["status"] for row in self.digests()]


class Desk:
    """Clock and worker of one service, each step when it is asked for."""

    def __init__(self, settings: Settings, postbox: Postbox) -> None:
        self.settings = settings
        self.postbox = postbox
        self.hours = 0.0
        self.mortal = Mortal(self._mailer())
        opened = Runtime.open(dataclasses.replace(settings, redis_url=None), threads=4)
        self.runtime = dataclasses.replace(opened, mailer=self.mortal)
        # Another process has a mailer of its own.
        self.elsewhere = dataclasses.replace(opened, mailer=self._mailer())
        self.owner: Engine = create_engine(settings.database_admin_url)

    def _mailer(self, data_seconds: float = DATA_SECONDS) -> Smtp:
        server = MailServer("127.0.0.1", self.postbox.port, Tls.NEVER)
        return Smtp(server, "records.test", data_seconds=data_seconds, break_seconds=0)

    def lose_patience(self) -> None:
        """Wait for an answer for seconds, and not for a minute."""
        self.mortal.mailer = self._mailer(5.0)

    def close(self) -> None:
        self.runtime.close()
        self.owner.dispose()

    def tick(self) -> None:
        """Free stuck jobs and enqueue digests that are due, as the clock's entries do."""
        ticks.free_stuck_jobs(self.runtime)
        ticks.send_digests(self.runtime)
        ticks.send_alerts(self.runtime)

    def work(self) -> None:
        """Work on every job that is due, as the sweep would ring it."""
        for tenant_id, job_id in self.due_jobs():
            work_on(self.runtime, tenant_id, job_id)

    def due_jobs(self) -> list[tuple[UUID, UUID]]:
        query = """
        SELECT tenant_id, id FROM jobs
         WHERE kind IN ('digest', 'alert_mail') AND finished_at IS NULL
           AND run_at <= clock_timestamp()
           AND (locked_until IS NULL OR locked_until < clock_timestamp()) ORDER BY id
        """
        with self.owner.connect() as connection:
            return [(row[0], row[1]) for row in connection.execute(text(query))]

    def send(self) -> list[Mail]:
        """Tick and work; return the mails that the server took meanwhile."""
        before = len(self.postbox.mails)
        self.tick()
        self.work()
        return self.postbox.mails[before:]

    def run(self, sql: str, **values: Any) -> None:
        with self.owner.begin() as connection:
            connection.execute(text(sql), values)

    def wait(self, hours: float) -> None:
        """Let time pass (or, negative, set the clock back)."""
        self.hours += hours
        for table, columns in _MOMENTS.items():
            changes = ", ".join(f"{name} = {name} - CAST(:wait AS interval)" for name in columns)
            self.run(f"UPDATE {table} SET {changes}", wait=f"{hours} hours")


_MOMENTS = {
    "alert_mails": ("claimed_at", "data_at", "sent_at"),
    "alerts": ("since", "noted_at"),
    "audit_breaks": ("detected_at", "seen_at", "healed_at"),
    "digests": ("claimed_at", "data_at", "sent_at"),
    "epochs": ("began_at",),
    "findings": ("created_at",),
    "lanes": ("failing_since", "unsuccessful_since"),
    "jobs": ("run_at", "locked_until", "ring_at"),
}


def due_tenants(desk: Desk, count: int) -> list[Tenant]:
    """Return so many tenants, each with an address and a finding that has settled."""
    made = [Tenant(desk) for _ in range(count)]
    for tenant in made:
        tenant.set_address()
        tenant.find()
    desk.wait(1)
    return made


def listed(*mails: Mail) -> set[str]:
    """Return the ids of the findings that mails list, in their plain text.

    Read from the bytes: parsing a mail costs more than making it.
    """
    texts = (mail.content.partition(b"Content-Type: text/html")[0] for mail in mails)
    return {
        found
        for each in texts
        for found in _FINDING.findall(quopri.decodestring(each).decode("utf-8", "replace"))
    }


@contextmanager
def desk_at(settings: Settings, postbox: Postbox) -> Iterator[Desk]:
    """Open a desk for the length of a `with`."""
    desk = Desk(settings, postbox)
    try:
        yield desk
    finally:
        desk.close()


def killed(work: Callable[[], object]) -> bool:
    """Do something that a process may die of; say whether it did."""
    try:
        work()
    except Killed:
        return True
    return False
