"""A checkpoint is a candidate until its quorum has cosigned it, and then published."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.core.anchoring import evidence
from app.core.log import candidates, proofs, publication, reading
from app.errors import LogPending, NotFound
from app.lib.metric_registry import Tally
from dev.tsa import TimestampAuthority
from jobs.actors.ticks import integrate
from jobs.process import runtime
from tests.core.anchoring.quorum.gated import AWAY, Gated
from tests.support.evidence.logs import add_leaves
from tests.support.evidence.witnesses import Witness


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
            reading.tile(session, last, "tile/0/000.p/4")
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
        found = candidates.current(session)
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
