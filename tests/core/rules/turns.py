"""Workers that take turns at rules and are killed at any moment, until a line is read.

`python -m tests.core.rules.turns SEED`, with the service's settings in the environment. Then one
more goes on until nothing is left, and the program ends.
"""

import os
import random
import select
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta

from app.core.delivery import sweeping
from app.core.rules import judging
from app.settings import load
from jobs.actors import judge, sweep
from jobs.process.runtime import Runtime

# Short, so that turns are also taken over from workers that live.
LEASE = timedelta(seconds=0.4)
# Workers die so often at least, however quick the test is.
LEAST = 4


def main() -> None:
    """Kill, until told; then finish."""
    chance = random.Random(int(sys.argv[1]))
    kills = 0
    while kills < LEAST or not select.select([sys.stdin], [], [], 0)[0]:
        children = [_forked(to_the_end=False) for _ in range(2)]
        for child in children:
            time.sleep(chance.uniform(0.1, 0.7))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            kills += 1
    _, status = os.waitpid(_forked(to_the_end=True), 0)
    print(kills, status, flush=True)


def _forked(*, to_the_end: bool) -> int:
    child = os.fork()
    if child == 0:
        judging.LEASE = LEASE
        here = Runtime.open(replace(load(), redis_url=None), threads=4)
        while True:
            with here.database.across_tenants() as session:
                left = session.connection().exec_driver_sql("SELECT count(*) FROM rule_work")
                waits = left.scalar_one()
                due = sweeping.due(session, sweep.OTHERS)["judge"]
            for (tenant_id,) in due:
                judge.run(here, str(tenant_id))
            if to_the_end and not waits:
                os._exit(0)
    return child


if __name__ == "__main__":
    main()
