"""The daily verification of a log: after a thousand new leaves, beside a walk of all of it."""

import time
from collections.abc import Iterator

from app.core import tenants
from app.core.log.head_store import FileHead
from app.core.log.sequencer import Sequencer
from app.core.verification import daily
from app.core.verification.published_log import Trust
from app.core.verification.verifier import Verifier
from app.errors import LogHeadUnavailable
from bench.datasets import chains
from bench.figures import Bound, Figure, Reach
from bench.lab import Lab
from bench.scale import Scale

_NEW = 1_000
_AT_ONCE = 100_000
# Of the largest backlog: a million leaves, then five.
_TIMES = (1, 5)


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Walk all of a log, then what a day adds; again once the log has grown."""
    with lab.migrated() as (settings, database):
        tenants.create(database, settings.master_keys, "bench")
        head = FileHead(lab.folder / "daily-head")
        sequencer = Sequencer(database, settings.master_keys, "bench.test/log", head)
        verifier = Verifier(database, settings.master_keys, head, Trust())
        leaves = 0
        for times in _TIMES:
            size = times * scale.backlogs[-1]
            while leaves < size:
                chains.add_leaves(database, min(_AT_ONCE, size - leaves))
                leaves += min(_AT_ONCE, size - leaves)
                sequencer.run()
            with database.across_tenants() as session:
                daily.forget_walk(session, settings.master_keys)
            whole = _timed(verifier, size)
            chains.add_leaves(database, _NEW)
            leaves += _NEW
            sequencer.run()
            yield Figure(
                f"a daily run after {_NEW} new leaves on {size}",
                _timed(verifier, _NEW),
                " s",
                Bound("a walk of all of it", whole),
                Reach(at_most=1.0),
            )


def _timed(verifier: Verifier, least: int) -> float:
    began = time.perf_counter()
    found = daily.run(verifier)
    if isinstance(found, LogHeadUnavailable):
        raise found
    if found["log"] != "intact" or found["walked"] < least:
        raise RuntimeError(f"the log was not verified: {found}")
    return time.perf_counter() - began
