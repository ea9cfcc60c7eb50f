"""A process that ticks or works for the digests of a service, until it is killed."""

import dataclasses
import os
import random
import time
from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import text

from app.errors import Unavailable
from app.lib.smtp import Smtp
from app.lib.smtp_url import MailServer, Tls
from app.settings import Settings
from jobs import send_digests
from jobs.run_job import work_on
from jobs.runtime import Runtime

_DUE = text("""
SELECT tenant_id, id FROM jobs WHERE kind = 'digest' AND finished_at IS NULL
   AND run_at <= clock_timestamp() AND (locked_until IS NULL OR locked_until < clock_timestamp())
 LIMIT 200
""")


def live(environ: Mapping[str, str], smtp_port: int, role: str) -> None:
    """Tick as a clock, or work as a worker, for as long as somebody is there."""
    parent = os.getppid()
    server = MailServer("127.0.0.1", smtp_port, Tls.NEVER)
    opened = Runtime.open(Settings.from_environ(environ), threads=4)
    here = dataclasses.replace(
        opened, mailer=Smtp(server, "x.test", data_seconds=2.0, break_seconds=0)
    )
    while os.getppid() == parent:
        try:
            busy = _tick(here) if role == "clock" else _work(here)
        except Unavailable:
            # Two of them met at a row: the next look finds it as it is then.
            busy = True
        if not busy:
            time.sleep(0.02)


def _tick(here: Runtime) -> bool:
    send_digests.look(here)
    return False


def _work(here: Runtime) -> bool:
    with here.database.across_tenants() as session:
        due: list[tuple[UUID, UUID]] = [(row[0], row[1]) for row in session.execute(_DUE)]
    # The same few that everybody else sees, so that they meet.
    for tenant_id, job_id in random.sample(due, min(len(due), 5)):
        work_on(here, tenant_id, job_id)
    return bool(due)
