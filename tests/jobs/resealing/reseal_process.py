"""A worker process that seals anew, two rows a step, until it is done or killed.

Called as `python -m tests.jobs.resealing.reseal_process JOB`, with the service's settings in the
environment.
"""

import sys
from uuid import UUID

from app import settings
from app.core.master_keys import resealing
from app.models import NO_TENANT
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime

if __name__ == "__main__":
    resealing.MOST_ROWS, resealing.MOST_PIECES = 2, 1
    here = Runtime.open(settings.load(), threads=4)
    work_on(here, NO_TENANT, UUID(sys.argv[1]))
    here.close()
