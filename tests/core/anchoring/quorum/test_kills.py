"""A sequencer that is killed, or runs in several workers, publishes nothing uncosigned."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from app.core.log.sequencer import Sequencer
from app.models import NO_TENANT
from jobs.durable.run_job import work_on
from tests.core.anchoring.quorum.gated import Gated
from tests.support.evidence.logs import FailingDatabase, Killed, add_leaves, failing, killed

STEPS = {
    "prepared": {"at": 0, "committed": True},
    "head not swapped": {"before_swap": 1},
    "head swapped": {"after_swap": 1},
    "not signed": {"at": 2, "committed": False},
    "signed": {"at": 2, "committed": True},
}


def _failing(gated: Gated, fault: dict[str, Any]) -> Sequencer:
    head, database = failing(gated.place.world, fault)
    return gated.sequencer(head=head, database=database)


@pytest.mark.parametrize("is_cosigned", [False, True], ids=["no candidate", "cosigned"])
@pytest.mark.parametrize("fault", STEPS.values(), ids=STEPS)
def test_killed_anywhere_the_next_run_goes_on(
    gated: Gated, fault: dict[str, Any], is_cosigned: bool
) -> None:
    if is_cosigned:
        gated.sign()
        gated.place.work()
    else:
        add_leaves(gated.place.database, 1)
    assert killed(_failing(gated, fault).run)
    assert is_cosigned or gated.published() == 3
    gated.place.world.check_consistency()
    if is_cosigned:
        gated.sequencer().run()
        assert gated.published() == 4
    assert gated.settle() == 4
    gated.place.world.prove()


def test_killed_between_a_witness_s_answer_and_its_line_it_is_asked_again(gated: Gated) -> None:
    """It has cosigned more than was ever published, and that is no alarm."""
    place = gated.place
    gated.sign()
    database = FailingDatabase(place.database)
    here = replace(place.runtime, database=database)  # type: ignore[arg-type]  # wraps one
    for job in place.jobs():
        database.at = 2
        with pytest.raises(Killed):
            work_on(here, NO_TENANT, job.id)
    assert (gated.one.size, gated.stored(), gated.published()) == (4, [], 3)
    place.run("UPDATE jobs SET locked_until = clock_timestamp() - interval '1 s'")
    assert gated.settle() == 4
    assert place.troubles() == []


def test_killed_anywhere_again_and_again_nothing_uncosigned_is_published(gated: Gated) -> None:
    rng = random.Random(4712)
    for _ in range(25):
        add_leaves(gated.place.database, rng.choice([0, 1, 300]))
        fault: dict[str, Any] = {
            rng.choice(["before_read", "before_swap", "after_swap"]): rng.choice([0, 1]),
            "at": rng.choice([None, 0, 1, 2, 3]),
            "committed": rng.random() < 0.5,
        }
        killed(_failing(gated, fault).run)
        gated.published()
        gated.place.world.check_consistency()
        if rng.random() < 0.6:
            gated.place.retry()
    gated.settle()
    assert gated.settle() == gated.published()
    gated.place.world.prove()
    assert (gated.place.world.waiting(), gated.candidate()) == (0, None)


def test_several_workers_at_once_publish_nothing_uncosigned(gated: Gated) -> None:
    total = 12
    add_leaves(gated.place.database, total - 3)

    def work(_: int) -> None:
        for _ in range(40):
            gated.sequencer().run(most=2)
            gated.place.work()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert gated.settle() == total
    gated.place.world.prove()
    assert gated.place.troubles() == []
