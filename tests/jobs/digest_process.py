"""A process that ticks or works for the digests of a service, until it is killed."""

import dataclasses
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from uuid import UUID

from sqlalchemy import text

from app.errors import Unavailable
from app.lib.mail.mailer import MailServer, Tls
from app.lib.mail.smtp import Smtp
from app.settings import Settings
from jobs.actors import ticks
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime

# Two share the one conversation of a process: one sends, one finds it taken.
_WORKER_THREADS = 2
# Between polls that find nothing: ten threads that poll without rest take a processor of their own.
_IDLE_SECONDS = 0.1
_DUE = text("""
SELECT tenant_id, id FROM jobs WHERE kind = 'digest' AND finished_at IS NULL
   AND run_at <= clock_timestamp() AND (locked_until IS NULL OR locked_until < clock_timestamp())
 LIMIT 50
""")


def live(environ: Mapping[str, str], smtp_port: int, role: str, data_seconds: float) -> None:
    """Tick as a clock, or work as a worker, for as long as the parent process lives."""
    server = MailServer("127.0.0.1", smtp_port, Tls.NEVER)
    opened = Runtime.open(Settings.from_environ(environ), threads=4)
    mailer = Smtp(server, "x.test", data_seconds=data_seconds, break_seconds=0)
    here = dataclasses.replace(opened, mailer=mailer)
    if role == "clock":
        _repeat(lambda: _tick(here))
    else:
        threading.excepthook = _end
        for _ in range(_WORKER_THREADS):
            threading.Thread(target=_repeat, args=(lambda: _work(here),)).start()


def _end(failed: threading.ExceptHookArgs) -> None:
    """Let a thread that fails be the end of its process, which is seen."""
    sys.excepthook(failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    os._exit(1)


def _repeat(do: Callable[[], bool]) -> None:
    """Do it again and again."""
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            busy = do()
        except Unavailable:
            # Two of them met at a row: the next look finds it as it is then.
            busy = True
        if not busy:
            time.sleep(_IDLE_SECONDS)


def _tick(here: Runtime) -> bool:
    ticks.send_digests(here)
    return False


def _work(here: Runtime) -> bool:
    with here.database.across_tenants() as session:
        due: list[tuple[UUID, UUID]] = [(row[0], row[1]) for row in session.execute(_DUE)]
    # The same few that everybody else sees, so that they meet.
    for tenant_id, job_id in random.sample(due, min(len(due), 5)):
        work_on(here, tenant_id, job_id)
    return bool(due)
