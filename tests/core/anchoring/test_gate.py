"""The gate publishes nothing that its quorum has not cosigned, whatever dies."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from app.core.anchoring import evidence
from app.core.health import gauges
from app.core.log import proofs, publication, rebuild, succession
from app.core.log.sequencer import Sequencer
from app.errors import Conflict, LogPending, NotFound
from app.lib.metric_registry import Tally
from app.models import NO_TENANT
from dev.tsa import TimestampAuthority
from jobs.actors.ticks import integrate
from jobs.durable.run_job import work_on
from jobs.process import runtime
from tests.core.anchoring.gated import AWAY, Gated
from tests.support.evidence.logs import FailingDatabase, Killed, add_leaves, failing, killed
from tests.support.evidence.witnesses import Witness
from tests.support.secrets import MASTER_KEYS


def test_a_checkpoint_is_published_once_its_quorum_has_cosigned_it(gated: Gated) -> None:
    gated.sign()
    assert (gated.published(), gated.candidate(), gated.stored()) == (3, 4, [])
    gated.place.work()
    assert gated.stored() == [(4, "one"), (4, "two")], "asked by the one that signed it"
    assert gated.published() == 3
    gated.sequencer().run()
    assert (gated.published(), gated.candidate()) == (4, None)
    gated.place.world.prove()
    assert (gated.one.asked, gated.two.asked) == (1, 1)


def test_of_a_candidate_nothing_is_served_and_nothing_proven(gated: Gated) -> None:
    gated.sign()
    (leaf,) = gated.place.world.hashes()[3:]
    with gated.place.database.across_tenants(snapshot=True) as session:
        last = proofs.published(session)
        assert (last.checkpoint.size, proofs.newest(session)) == (3, last)
        with pytest.raises(LogPending, match="once its witnesses have cosigned it"):
            proofs.of_leaf(session, last, leaf)
        with pytest.raises(LogPending):
            evidence.Chooser(session, last, None).best(3)
        assert proofs.indexes(session, [leaf]) == {}
        with pytest.raises(NotFound):
            proofs.tile(session, last, "tile/0/000.p/4")
        assert publication.at(session, last.generation, 4) is None
    gated.settle()
    with gated.place.database.across_tenants(snapshot=True) as session:
        last = proofs.newest(session)
        assert proofs.of_leaf(session, last, leaf)["tree_size"] == 4


@pytest.mark.parametrize(("threshold", "published"), [("all", 3), ("any", 4)])
def test_the_quorum_is_that_of_the_policy(gated: Gated, threshold: str, published: int) -> None:
    gated.name(threshold)
    gated.one.faults = [lambda _: AWAY] * 99
    gated.sign()
    assert gated.settle() == published


def test_the_empty_tree_needs_no_witness(gated: Gated) -> None:
    gated.place.run("TRUNCATE signing_keys, log_leaves, log_tiles CASCADE")
    gated.place.head.unlink()
    gated.sequencer().run()
    assert gated.place.world.published().checkpoint.size == 0


def test_leaves_wait_behind_a_candidate_and_all_come_out(gated: Gated) -> None:
    gated.one.faults = [lambda _: AWAY]
    gated.sign()
    for _ in range(3):
        gated.place.work()
        gated.sign(2)
    assert (gated.published(), gated.candidate(), gated.place.world.waiting()) == (3, 4, 6)
    assert gated.settle() == 10
    gated.place.world.prove()


def test_a_tick_shows_witnesses_the_candidate_and_stamps_what_is_published(
    gated: Gated, tmp_path: Path
) -> None:
    gated.sign()
    with TimestampAuthority(tmp_path / "tsa") as authority:
        gated.place.stamped_by(authority.url, authority.ca_file)
        gated.place.stamp()
    assert gated.stored() == [(4, "one"), (4, "two")]
    assert gated.place.scalar("SELECT size FROM checkpoint_timestamps") == 3


def test_with_the_setting_off_a_candidate_is_published_at_once(gated: Gated) -> None:
    gated.sign()
    gated.sequencer(gate=None).run()
    assert gated.place.world.published().checkpoint.size == 4
    assert gated.candidate() is None


def test_lines_that_others_put_into_the_database_admit_nothing(gated: Gated) -> None:
    gated.one.faults = gated.two.faults = [lambda _: AWAY] * 9
    gated.sign()
    with gated.place.database.across_tenants() as session:
        found = publication.current_candidate(session)
        assert found is not None
    for each in (gated.one, gated.two):
        line = Witness(each.name).cosign(found.checkpoint.text)
        gated.place.run(
            "INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line)"
            " VALUES (1, 4, :name, :hash, :line)",
            name=each.name,
            hash=each.vkey.key_hash,
            line=str(replace(line, key_hash=each.vkey.key_hash)),
        )
    gated.sequencer().run()
    assert gated.published() == 3


def test_a_note_that_others_put_into_the_database_is_no_candidate(gated: Gated) -> None:
    """The checkpoint is signed anew, and that is what the witnesses are shown."""
    gated.sign()
    gated.place.run("UPDATE checkpoints SET unpublished_note = 'x' WHERE size = 4")
    assert gated.candidate() is None
    assert gated.settle() == 4


def test_a_worker_publishes_nothing_uncosigned(gated: Gated) -> None:
    settings = replace(
        gated.place.runtime.settings, redis_url=None, log_head_url=gated.place.head.as_uri()
    )
    runtime.start(settings, threads=4, tally=Tally())
    try:
        add_leaves(gated.place.database, 1)
        integrate(runtime.runtime())
        assert (gated.published(), gated.candidate()) == (3, 4)
        gated.place.work()
        integrate(runtime.runtime())
        assert gated.published() == 4
    finally:
        runtime.stop()


def test_a_witness_that_fails_is_left_in_peace_and_asked_when_it_is_back(gated: Gated) -> None:
    gated.one.faults = [lambda _: AWAY]
    gated.sign()
    for _ in range(5):
        gated.place.work()
        gated.sequencer().run()
    assert gated.one.asked == 1
    gated.later()
    gated.sequencer().run()
    gated.place.work()
    assert gated.one.asked == 2
    gated.sequencer().run()
    assert gated.published() == 4


def test_a_witness_that_was_just_asked_is_asked_for_the_next_checkpoint_at_once(
    gated: Gated,
) -> None:
    for size in (4, 5, 6):
        gated.sign()
        gated.place.work()
        gated.sequencer().run()
        assert gated.published() == size


def test_a_quorum_that_stays_away_is_a_trouble_after_its_grace(gated: Gated) -> None:
    place = gated.place
    gated.one.faults = [lambda _: AWAY] * 2
    gated.sign()
    place.work()
    gated.later(100)
    gated.sequencer().run()
    assert place.troubles() == []
    place.work()
    gated.later(100)
    with structlog.testing.capture_logs() as lines:
        gated.sequencer().run()
        gated.sequencer().run()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == ("quorum", False)
    assert f"cosigned size 4. Not cosigned by {gated.part(gated.one)}: " in trouble.detail
    assert gated.two.name not in trouble.detail
    (told,) = [each for each in lines if each["event"] == "unanchored"]
    assert (told["log_level"], told["part"]) == ("error", "quorum")
    with place.database.across_tenants() as session:
        assert gauges.read_totals(session)["checkpoint_waiting_seconds"] >= 200
    place.stamp()
    assert [each.part for each in place.troubles()] == ["quorum"], "a tick does not end it"
    assert gated.published() == 3
    gated.sequencer().run()
    assert gated.published() == 4
    assert place.troubles() == []
    with place.database.across_tenants() as session:
        assert gauges.read_totals(session)["checkpoint_waiting_seconds"] == 0


def test_a_witness_that_cosigned_another_log_is_an_alarm_and_nothing_is_published(
    gated: Gated,
) -> None:
    """A copy of this database had another tree of the next size cosigned."""
    gated.sign()
    gated.place.work()
    gated.sequencer().run()
    assert gated.one.seen is not None
    gated.one.seen = replace(gated.one.seen, size=5, root=b"\1" * 32)
    gated.sign()
    assert gated.settle() == 4
    (trouble,) = gated.place.troubles()
    assert (trouble.part, trouble.alarm) == (gated.part(gated.one), True)
    assert "another log of ours of size 5" in trouble.detail


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


def test_a_candidate_that_a_rebuild_withdraws_takes_its_lines_along(gated: Gated) -> None:
    """Another sequencer went on from it, and this database lost the row of what came of that."""
    gated.two.faults = [lambda _: AWAY]
    gated.sign()
    gated.place.work()
    with gated.place.database.across_tenants() as session:
        found = publication.current_candidate(session)
        assert found is not None
        right = replace(found.checkpoint, size=5, root=b"\1" * 32)
        rebuild.restore_checkpoint(session, MASTER_KEYS, right, found.generation, None, 0)
    assert gated.stored() == []


def test_a_log_whose_witnesses_are_lost_can_be_succeeded(gated: Gated) -> None:
    gated.one.faults = [lambda _: AWAY] * 99
    gated.sign()
    assert gated.settle() == 3
    with pytest.raises(Conflict, match="can go on"):
        succession.succeed(gated.sequencer(), MASTER_KEYS, force=False)
    new = succession.succeed(gated.sequencer(), MASTER_KEYS, force=True)
    assert new.generation.predecessor is not None
    assert new.generation.predecessor.size == 4
    gated.one.faults = []
    for each in (gated.one, gated.two):
        each.log, each.seen = new.generation.verifier_key, None
    gated.later()
    gated.settle()
    assert gated.settle() == 5
    gated.place.world.prove()


def test_commands_publish_nothing_uncosigned_and_tell_of_the_candidate(
    gated: Gated, manage: Callable[..., tuple[int, str]]
) -> None:
    lines = [f"witness {n} {w.vkey} {gated.urls[w.name]}" for n, w in gated.named()]
    status, said = manage(
        *("log", "succeed", "--yes", "--force"),
        DATABASE_URL=gated.place.runtime.settings.database_url,
        LOG_HEAD_URL=gated.place.head.as_uri(),
        WITNESS_POLICY="\n".join([*lines, "group both all one two", "quorum both", ""]),
        LOG_REQUIRE_QUORUM="1",
    )
    assert status == 0
    assert "published: nothing\n" in said
    assert "candidate: 1 leaves, signed at " in said
    assert "published once the quorum has cosigned it\n" in said
